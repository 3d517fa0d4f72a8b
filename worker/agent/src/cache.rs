//! Files by digest, fetched once and kept, up to a limit; the least recently used go first.
//!
//! A file is in the folder if and only if it was verified: it is written elsewhere, hashed, made durable, and moved
//! here. Whether it is hashed again when used is up to who uses it: a dataset is not, what a job begins with is. Users get a hard link, so that a file that is dropped while an attempt
//! works on it stays whole for that attempt.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::Digest;
use lockstep_service::Clock;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use crate::files::{private_folder, remove_folder};

#[derive(Debug)]
struct Entry {
    size_bytes: u64,
    used_at: SystemTime,
    /// Breaks ties of the clock.
    order: u64,
}

#[derive(Debug, Default)]
struct Index {
    entries: HashMap<String, Entry>,
    total_bytes: u64,
    order: u64,
}

/// The cache of one node.
#[derive(Debug)]
pub(crate) struct Cache {
    files: Utf8PathBuf,
    incoming: Utf8PathBuf,
    cap_bytes: u64,
    clock: Clock,
    index: Mutex<Index>,
}

impl Cache {
    /// Opens the cache in `folder`. Blocks.
    pub(crate) fn open(folder: &Utf8Path, cap_bytes: u64, clock: Clock) -> anyhow::Result<Self> {
        let (files, incoming) = (folder.join("files"), folder.join("incoming"));
        private_folder(folder)?;
        private_folder(&files)?;
        // What was being fetched when the last agent ended.
        remove_folder(&incoming)?;
        private_folder(&incoming)?;
        let mut index = Index::default();
        for entry in files.read_dir_utf8()? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            index.insert(entry.file_name().to_owned(), metadata.len(), metadata.modified()?);
        }
        let cache = Self { files, incoming, cap_bytes, clock, index: Mutex::new(index) };
        cache.evict(&mut cache.lock(), "");
        Ok(cache)
    }

    /// Gives `target` the content of `digest`, if it is here. Blocks.
    pub(crate) fn link(&self, digest: &Digest, target: &Utf8Path) -> io::Result<bool> {
        let mut index = self.lock();
        let Some(entry) = index.entries.get(digest.hex()) else { return Ok(false) };
        let size_bytes = entry.size_bytes;
        let path = self.files.join(digest.hex());
        match std::fs::hard_link(&path, target) {
            Ok(()) => {}
            // Somebody else emptied the folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => {
                index.remove(digest.hex());
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        let now = SystemTime::from(self.clock.now());
        index.insert(digest.hex().to_owned(), size_bytes, now);
        // Only the order after a restart depends on it.
        if let Err(error) = File::open(&path).and_then(|file| file.set_modified(now)) {
            tracing::debug!(%path, %error, "cannot note when a cached file was used");
        }
        Ok(true)
    }

    /// [`Self::link`] of a file that still has this digest; one that disks or people have changed is dropped. Blocks.
    pub(crate) fn link_verified(&self, digest: &Digest, target: &Utf8Path) -> io::Result<bool> {
        if !self.link(digest, target)? {
            return Ok(false);
        }
        let found = digest_of(target)?;
        if found == *digest {
            return Ok(true);
        }
        tracing::warn!(%digest, %found, "a cached file has changed and is dropped");
        std::fs::remove_file(target)?;
        let mut index = self.lock();
        index.remove(digest.hex());
        match std::fs::remove_file(self.files.join(digest.hex())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(false),
        }
    }

    /// A file to write fetched bytes to, for [`Self::insert`]. Blocks.
    pub(crate) fn new_file(&self) -> io::Result<NamedTempFile> {
        NamedTempFile::new_in(&self.incoming)
    }

    /// Takes a file whose content has been found to have this digest. Blocks.
    pub(crate) fn insert(&self, digest: &Digest, file: NamedTempFile) -> io::Result<()> {
        let size_bytes = file.as_file().metadata()?.len();
        // Ranks share the inode: nobody writes to it again.
        file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o400))?;
        file.as_file().sync_data()?;
        let mut index = self.lock();
        file.persist(self.files.join(digest.hex())).map_err(|error| error.error)?;
        index.insert(digest.hex().to_owned(), size_bytes, self.clock.now().into());
        self.evict(&mut index, digest.hex());
        Ok(())
    }

    /// Drops the least recently used until the rest fits; never `keep`, which is about to be used.
    fn evict(&self, index: &mut Index, keep: &str) {
        while self.cap_bytes < index.total_bytes {
            let oldest = index.entries.iter().filter(|(name, _)| name.as_str() != keep);
            let oldest = oldest.min_by_key(|(_, it)| (it.used_at, it.order));
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { return };
            let path = self.files.join(&name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%path, %error, "cannot drop a cached file");
                }
                _ => {}
            }
            index.remove(&name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest_of(path: &Utf8Path) -> io::Result<Digest> {
    const PIECE_BYTES: usize = 1 << 20;
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(Digest::from_sha256(hash.finalize().into())),
            read => hash.update(&piece[..read]),
        }
    }
}

impl Index {
    fn insert(&mut self, name: String, size_bytes: u64, used_at: SystemTime) {
        self.order += 1;
        let entry = Entry { size_bytes, used_at, order: self.order };
        self.total_bytes += size_bytes;
        if let Some(old) = self.entries.insert(name, entry) {
            self.total_bytes -= old.size_bytes;
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(old) = self.entries.remove(name) {
            self.total_bytes -= old.size_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use chrono::DateTime;

    use super::*;

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().to_owned()).unwrap();
        (folder, path)
    }

    fn insert(cache: &Cache, bytes: &[u8]) -> Digest {
        let mut file = cache.new_file().unwrap();
        file.write_all(bytes).unwrap();
        let digest = Digest::of(bytes);
        cache.insert(&digest, file).unwrap();
        digest
    }

    #[test]
    fn the_least_recently_used_go_first_and_a_link_outlives_its_file() {
        let (_keep, folder) = folder();
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let cache = Cache::open(&folder.join("cache"), 10, clock.clone()).unwrap();
        let a = insert(&cache, b"aaaa");
        clock.advance(Duration::from_secs(1));
        let b = insert(&cache, b"bbbb");
        clock.advance(Duration::from_secs(1));
        assert!(cache.link(&a, &folder.join("a")).unwrap());
        clock.advance(Duration::from_secs(1));
        let c = insert(&cache, b"cccc");
        assert!(!cache.link(&b, &folder.join("b")).unwrap());
        assert!(cache.link(&c, &folder.join("c")).unwrap());

        // What is known of use survives a restart.
        drop(cache);
        let cache = Cache::open(&folder.join("cache"), 10, clock.clone()).unwrap();
        clock.advance(Duration::from_secs(1));
        insert(&cache, b"dddd");
        assert!(!cache.link(&a, &folder.join("a2")).unwrap());
        assert!(cache.link(&c, &folder.join("c2")).unwrap());
        assert_eq!(std::fs::read(folder.join("a")).unwrap(), b"aaaa");
    }

    #[test]
    fn a_file_that_has_changed_is_not_given_out_but_dropped() {
        let (_keep, folder) = folder();
        let cache = Cache::open(&folder.join("cache"), 100, Clock::system()).unwrap();
        let digest = insert(&cache, b"weights");
        assert!(cache.link_verified(&digest, &folder.join("a")).unwrap());
        // In place, as a disk does it: the link is of the same file.
        let path = folder.join("cache/files").join(digest.hex());
        let writable = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, writable).unwrap();
        std::fs::write(&path, b"weighty").unwrap();
        assert!(!cache.link_verified(&digest, &folder.join("b")).unwrap());
        assert!(!path.exists() && !folder.join("b").exists());
        assert!(!cache.link(&digest, &folder.join("b")).unwrap());
        insert(&cache, b"weights");
        assert!(cache.link_verified(&digest, &folder.join("b")).unwrap());
    }

    #[test]
    fn a_file_larger_than_the_whole_cache_is_kept_while_it_is_the_newest() {
        let (_keep, folder) = folder();
        let cache = Cache::open(&folder.join("cache"), 3, Clock::system()).unwrap();
        let big = insert(&cache, b"aaaa");
        assert!(cache.link(&big, &folder.join("a")).unwrap());
        insert(&cache, b"b");
        assert!(!cache.link(&big, &folder.join("b")).unwrap());
    }
}
