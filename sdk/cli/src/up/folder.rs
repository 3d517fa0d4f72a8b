//! The data folder: who owns it, what lies where.

use std::fs::{DirBuilder, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_postgres::{FolderLock, PostgresError};

/// The data folder, owned.
#[derive(Debug)]
pub(crate) struct Folder {
    path: Utf8PathBuf,
    _lock: FolderLock,
}

impl Folder {
    /// Makes it if need be, and takes it.
    pub(crate) fn open(path: &Utf8Path) -> anyhow::Result<Self> {
        if !path.is_dir() {
            // As root the database runs as another user, who has to pass through; everything else inside is private.
            let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
            make(path, mode)?;
        }
        let path = path.canonicalize_utf8().with_context(|| format!("resolving {path}"))?;
        let lock = FolderLock::acquire(&path).map_err(|error| match error {
            PostgresError::InUse { folder, pid } => {
                let who = pid
                    .map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
                anyhow::anyhow!("`lockstep up` already runs on {folder} ({who})")
            }
            error => error.into(),
        })?;
        let folder = Self { path, _lock: lock };
        for private in [folder.logs(), folder.server(), folder.agent()] {
            make(&private, 0o700)?;
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    pub(crate) fn logs(&self) -> Utf8PathBuf {
        self.path.join("logs")
    }

    pub(crate) fn postgres(&self) -> Utf8PathBuf {
        self.path.join("postgres")
    }

    pub(crate) fn server(&self) -> Utf8PathBuf {
        self.path.join("server")
    }

    pub(crate) fn agent(&self) -> Utf8PathBuf {
        self.path.join("agent")
    }

    /// The admin's token, for the next start.
    pub(crate) fn credentials(&self) -> Utf8PathBuf {
        self.path.join("admin.json")
    }

    /// Where the server says its address.
    pub(crate) fn address(&self) -> Utf8PathBuf {
        self.path.join("address")
    }

    /// What the agent joins with.
    pub(crate) fn join_token(&self) -> Utf8PathBuf {
        self.path.join("join-token")
    }
}

fn make(path: &Utf8Path, mode: u32) -> anyhow::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_str().is_empty()) {
        std::fs::create_dir_all(parent).with_context(|| format!("creating {parent}"))?;
    }
    let made = DirBuilder::new().mode(mode).create(path);
    // Whatever the umask says.
    made.and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(mode)))
        .with_context(|| format!("creating {path}"))
}

/// Replaces a file that only its owner may read: whole or not at all.
pub(crate) fn replace_private(path: &Utf8Path, text: &str) -> anyhow::Result<()> {
    let unfinished = Utf8PathBuf::from(format!("{path}.new"));
    let write = || {
        remove_if_there(&unfinished)?;
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    write().with_context(|| format!("writing {path}"))
}

/// Removes a file that may not be there.
pub(crate) fn remove(path: &Utf8Path) -> anyhow::Result<()> {
    remove_if_there(path).with_context(|| format!("removing {path}"))
}

fn remove_if_there(path: &Utf8Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_at_a_time_who_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("a/b");
        let folder = Folder::open(&path).unwrap();
        let error = Folder::open(&path).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(folder);
        Folder::open(&path).unwrap();
    }

    #[test]
    fn a_secret_file_is_replaced_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("secret");
        std::fs::write(&path, "old and readable").unwrap();
        replace_private(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
