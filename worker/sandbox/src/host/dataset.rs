//! `dataset`: the files of one folder, mapped and read-only.
//!
//! A guest's path is looked up among the files that were found when the guest was opened and is never
//! made part of a path on this machine: what is not listed does not exist.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use memmap2::{Advice, Mmap};
use wasmtime::StoreContextMut;
use wasmtime::component::{LinkerInstance, Resource};

use super::{GuestState, log::cut_to};
use crate::bindings::dataset::{self, Entry};
use crate::bindings::types::Error;
use crate::error::GuestError;
use crate::trusted_files;

/// Files of a dataset.
const FILES_CAP: usize = 10_000;

/// Folders within folders.
const DEPTH_CAP: usize = 64;

/// Entries of one answer of `list`.
const LIST_CAP: usize = 1000;

/// Bytes of one read: larger ones cost the guest one fresh allocation each.
const READ_CAP: u32 = 16 << 20;

/// Ranges of one `prefetch`; the rest is ignored.
const PREFETCH_CAP: usize = 64;

/// The files of a dataset by their dataset paths.
#[derive(Debug, Default)]
pub(crate) struct Dataset {
    files: BTreeMap<String, File>,
}

#[derive(Debug)]
struct File {
    path: Utf8PathBuf,
    size: u64,
    map: Option<Arc<Mmap>>,
}

/// An open file, behind a handle.
#[expect(unreachable_pub, reason = "the bindings re-export it")]
#[derive(Debug)]
pub struct Object {
    map: Arc<Mmap>,
}

struct Mapped(Arc<Mmap>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Dataset {
    /// Finds the files under a folder. Links to files count as files (a cache may be made of them),
    /// links to folders are left out: nothing leads out of the folder.
    pub(crate) fn open(dir: &Utf8Path) -> Result<Self, GuestError> {
        let mut files = BTreeMap::new();
        collect(dir, "", 0, &mut files).map_err(|error| {
            GuestError::Host(format!("cannot list the dataset in {dir}: {error}"))
        })?;
        Ok(Self { files })
    }

    fn list(&self, after: Option<&str>, limit: u32) -> Vec<Entry> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let limit = LIST_CAP.min(limit as usize);
        let rest = self.files.range::<str, _>((from, Bound::Unbounded));
        rest.take(limit).map(|(path, file)| Entry { path: path.clone(), size: file.size }).collect()
    }

    /// `None`: there is no such file.
    fn map(&mut self, path: &str) -> Option<Result<Arc<Mmap>, GuestError>> {
        let file = self.files.get_mut(path)?;
        if let Some(map) = &file.map {
            return Some(Ok(Arc::clone(map)));
        }
        let map = trusted_files::map(&file.path).map(Arc::new).map_err(|error| {
            GuestError::Host(format!("cannot read the dataset's file {path:?}: {error}"))
        });
        file.map = map.as_ref().ok().cloned();
        Some(map)
    }
}

fn collect(
    dir: &Utf8Path,
    prefix: &str,
    depth: usize,
    files: &mut BTreeMap<String, File>,
) -> std::io::Result<()> {
    if DEPTH_CAP < depth {
        return Err(std::io::Error::other(format!("more than {DEPTH_CAP} folders deep")));
    }
    for entry in dir.read_dir_utf8()? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(entry.path(), &format!("{name}/"), depth + 1, files)?;
            continue;
        }
        let data = entry.path().metadata()?;
        if !data.is_file() {
            continue;
        }
        if FILES_CAP <= files.len() {
            return Err(std::io::Error::other(format!("more than {FILES_CAP} files")));
        }
        files.insert(name, File { path: entry.into_path(), size: data.len(), map: None });
    }
    Ok(())
}

impl Object {
    fn range(&self, offset: u64, len: u32) -> std::ops::Range<usize> {
        let end = self.map.len();
        let start = usize::try_from(offset).unwrap_or(end).min(end);
        start..start.saturating_add(len as usize).min(end)
    }

    fn read(&self, offset: u64, len: u32) -> Result<Bytes, Error> {
        if READ_CAP < len {
            return Err(Error::Internal(format!("read of {len} bytes, at most {READ_CAP} a call")));
        }
        Ok(Bytes::from_owner(Mapped(Arc::clone(&self.map))).slice(self.range(offset, len)))
    }
}

impl dataset::Host for GuestState {
    fn list(
        &mut self,
        after: Option<String>,
        limit: u32,
    ) -> wasmtime::Result<Result<Vec<Entry>, Error>> {
        Ok(Ok(self.dataset.list(after.as_deref(), limit)))
    }

    fn open(&mut self, path: String) -> wasmtime::Result<Result<Resource<Object>, Error>> {
        match self.dataset.map(&path) {
            None => {
                let path = cut_to(path, 200);
                Ok(Err(Error::Data(format!("the dataset has no file {path:?}"))))
            }
            Some(map) => Ok(Ok(self.handles.push(Object { map: map? })?)),
        }
    }
}

impl dataset::HostObject for GuestState {
    fn size(&mut self, this: Resource<Object>) -> wasmtime::Result<u64> {
        Ok(self.handles.get(&this)?.map.len() as u64)
    }

    /// Replaced by [`lend_reads`], which hands out the mapped bytes themselves.
    fn read(
        &mut self,
        this: Resource<Object>,
        offset: u64,
        len: u32,
    ) -> wasmtime::Result<Result<Vec<u8>, Error>> {
        Ok(self.handles.get(&this)?.read(offset, len).map(Vec::from))
    }

    fn prefetch(
        &mut self,
        this: Resource<Object>,
        ranges: Vec<(u64, u32)>,
    ) -> wasmtime::Result<()> {
        let object = self.handles.get(&this)?;
        for (offset, len) in ranges.into_iter().take(PREFETCH_CAP) {
            let range = object.range(offset, len);
            if let Err(error) = object.map.advise_range(Advice::WillNeed, range.start, range.len())
            {
                tracing::debug!(%error, "a hint to read ahead was refused");
            }
        }
        Ok(())
    }

    fn drop(&mut self, this: Resource<Object>) -> wasmtime::Result<()> {
        self.handles.delete(this)?;
        Ok(())
    }
}

/// Puts a `read` in place that copies once, from the mapped file to the guest.
pub(crate) fn lend_reads(mut dataset: LinkerInstance<'_, GuestState>) -> wasmtime::Result<()> {
    type Read = (Resource<Object>, u64, u32);
    dataset.func_wrap(
        "[method]object.read",
        |store: StoreContextMut<'_, GuestState>, (this, offset, len): Read| {
            Ok((store.data().handles.get(&this)?.read(offset, len),))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Dataset) {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap().to_owned();
        std::fs::create_dir(root.join("data")).unwrap();
        std::fs::create_dir(root.join("data/part")).unwrap();
        std::fs::write(root.join("secret"), "no").unwrap();
        std::fs::write(root.join("data/b"), "0123456789").unwrap();
        std::fs::write(root.join("data/part/a"), "").unwrap();
        std::os::unix::fs::symlink("..", root.join("data/up")).unwrap();
        std::os::unix::fs::symlink("b", root.join("data/link")).unwrap();
        let dataset = Dataset::open(&root.join("data")).unwrap();
        (dir, dataset)
    }

    #[test]
    fn only_the_folders_own_files_are_listed_and_opened() {
        let (_dir, mut dataset) = folder();
        let names: Vec<String> = dataset.list(None, 100).into_iter().map(|e| e.path).collect();
        assert_eq!(names, ["b", "link", "part/a"]);
        assert_eq!(dataset.list(Some("b"), 1)[0].path, "link");
        for path in ["../secret", "up/secret", "./b", "/etc/passwd", "part/../b", "", "part"] {
            assert!(dataset.map(path).is_none(), "{path}");
        }
        assert_eq!(dataset.map("part/a").unwrap().unwrap().len(), 0);
    }

    #[test]
    fn a_read_past_the_end_is_short_and_a_huge_one_is_refused() {
        let (_dir, mut dataset) = folder();
        let object = Object { map: dataset.map("b").unwrap().unwrap() };
        assert_eq!(object.read(8, 100).unwrap(), "89");
        assert_eq!(object.read(3, 2).unwrap(), "34");
        assert_eq!(object.read(u64::MAX, 5).unwrap(), "");
        assert!(object.read(0, READ_CAP + 1).is_err());
    }
}
