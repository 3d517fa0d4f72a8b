//! One owner a folder. The lock is the kernel's (`flock`), so it ends with its holder however that dies; the file's
//! text only tells people who it is.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::PostgresError;
use crate::error::IoContext as _;

/// The right to a folder, held. Dropping it removes the file and lets go.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
    path: Utf8PathBuf,
}

impl FolderLock {
    /// Takes `folder/lock`.
    ///
    /// # Errors
    /// [`PostgresError::InUse`] when someone holds it, this process included.
    pub fn acquire(folder: &Utf8Path) -> Result<Self, PostgresError> {
        let path = folder.join("lock");
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .doing("open", &path)?;
            let mut lock = Self { file, path: path.clone() };
            match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let pid = lock.written_pid();
                    lock.path = Utf8PathBuf::new();
                    return Err(PostgresError::InUse { folder: folder.to_owned(), pid });
                }
                Err(error) => {
                    lock.path = Utf8PathBuf::new();
                    return Err(error).doing("lock", &path);
                }
            }
            if lock.is_still_named()? {
                lock.write_pid()?;
                return Ok(lock);
            }
            // The holder before us removed the file between our open and our lock: what we hold has no name.
            lock.path = Utf8PathBuf::new();
        }
    }

    fn written_pid(&mut self) -> Option<i32> {
        let mut text = String::new();
        self.file.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    fn is_still_named(&self) -> Result<bool, PostgresError> {
        let held = self.file.metadata().doing("look at", &self.path)?;
        Ok(std::fs::metadata(&self.path).is_ok_and(|named| named.ino() == held.ino()))
    }

    fn write_pid(&mut self) -> Result<(), PostgresError> {
        let text = format!("{}\n", std::process::id());
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .doing("write", &self.path)
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if self.path.as_str().is_empty() {
            return;
        }
        // Removed while still held, so that nobody can hold the name and not the lock.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path, %error, "the lock file could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_refused_by_pid_and_a_later_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(dir.path()).unwrap();
        let first = FolderLock::acquire(folder).unwrap();
        match FolderLock::acquire(folder) {
            Err(PostgresError::InUse { pid, .. }) => {
                assert_eq!(pid, i32::try_from(std::process::id()).ok());
            }
            other => panic!("{other:?}"),
        }
        drop(first);
        assert!(!folder.join("lock").exists());
        FolderLock::acquire(folder).unwrap();
    }

    #[test]
    fn a_file_left_by_a_dead_owner_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(dir.path()).unwrap();
        std::fs::write(folder.join("lock"), "1\n").unwrap();
        FolderLock::acquire(folder).unwrap();
    }
}
