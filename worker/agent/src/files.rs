//! Folders for this user alone, files replaced whole, and the lock that one data folder has one agent.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};

use anyhow::{Context as _, bail, ensure};
use camino::Utf8Path;
use rustix::fs::{FlockOperation, flock};

/// Makes a folder with mode 0700, and those above it. One that is there must belong to this user alone.
///
/// The check matters below `/tmp`, where anybody may have made it first.
pub(crate) fn private_folder(path: &Utf8Path) -> anyhow::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make the folder {parent}"))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("cannot make the folder {path}")),
    }
    let found =
        std::fs::symlink_metadata(path).with_context(|| format!("cannot look at {path}"))?;
    ensure!(found.is_dir(), "{path} is not a folder");
    let uid = rustix::process::getuid().as_raw();
    ensure!(found.uid() == uid, "{path} belongs to user {}, expected {uid}", found.uid());
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .with_context(|| format!("cannot close {path} to others"))?;
    }
    Ok(())
}

/// Removes a folder and all below it; one that is not there is fine.
pub(crate) fn remove_folder(path: &Utf8Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Replaces a file whole; mode 0600; survives a power cut.
pub(crate) fn replace_file(path: &Utf8Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let mut file = tempfile::NamedTempFile::with_prefix_in(".new-", folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

/// Held for as long as the agent runs.
#[derive(Debug)]
pub(crate) struct FolderLock {
    file: File,
}

impl Drop for FolderLock {
    /// Closing the file would do, unless a child that was just forked still has a descriptor of it.
    fn drop(&mut self) {
        if let Err(error) = flock(&self.file, FlockOperation::Unlock) {
            tracing::debug!(%error, "cannot give up the lock of the data folder");
        }
    }
}

/// Takes the lock of a data folder.
pub(crate) fn lock_folder(folder: &Utf8Path) -> anyhow::Result<FolderLock> {
    let path = folder.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open {path}"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(FolderLock { file }),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            bail!("another agent runs with the data folder {folder}")
        }
        Err(error) => Err(error).with_context(|| format!("cannot lock {path}")),
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    #[test]
    fn a_data_folder_has_one_agent_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().to_owned()).unwrap();
        let held = lock_folder(&path).unwrap();
        assert!(lock_folder(&path).unwrap_err().to_string().contains("another agent"));
        // As a child has it between its fork and its exec.
        let inherited = held.file.try_clone().unwrap();
        drop(held);
        lock_folder(&path).unwrap();
        drop(inherited);
    }

    #[test]
    fn a_folder_that_others_may_enter_is_closed_and_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let base = Utf8PathBuf::try_from(folder.path().to_owned()).unwrap();
        let open = base.join("a/open");
        std::fs::create_dir_all(&open).unwrap();
        private_folder(&open).unwrap();
        assert_eq!(std::fs::metadata(&open).unwrap().mode() & 0o777, 0o700);
        std::os::unix::fs::symlink(&open, base.join("link")).unwrap();
        assert!(private_folder(&base.join("link")).is_err());
    }
}
