//! Where the socket lives: in the cluster's folder, unless the path would not fit into a socket's address.

use std::fmt::Write as _;
use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest as _, Sha256};

use crate::PostgresError;
use crate::error::IoContext as _;
use crate::identity::Identity;

/// Postgres names it after the port, which is a name and nothing else here.
pub(crate) const PORT: u16 = 5432;
pub(crate) const SOCKET_FILE: &str = ".s.PGSQL.5432";
/// `sun_path` without its final zero.
const PATH_CAP: usize = 107;

/// The folder of the socket for a cluster in `folder`.
pub(crate) fn place(folder: &Utf8Path, uid: u32) -> Utf8PathBuf {
    let near = folder.join("socket");
    if near.join(SOCKET_FILE).as_str().len() <= PATH_CAP {
        return near;
    }
    let hash = Sha256::digest(folder.as_str().as_bytes());
    let mut name = format!("lockstep-{uid}-");
    for byte in &hash[..8] {
        // Writing to a String cannot fail.
        write!(name, "{byte:02x}").expect("a String takes everything");
    }
    Utf8Path::new("/tmp").join(name)
}

/// Makes it, for `identity` alone.
pub(crate) fn prepare(socket_dir: &Utf8Path, identity: &Identity) -> Result<(), PostgresError> {
    match DirBuilder::new().mode(0o700).create(socket_dir) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            refuse_strangers(socket_dir, identity)?
        }
        Err(error) => return Err(error).doing("create", socket_dir),
    }
    std::fs::set_permissions(socket_dir, Permissions::from_mode(0o700))
        .doing("chmod", socket_dir)?;
    identity.give(socket_dir)
}

/// `/tmp` is everyone's: a folder (or link) that someone else put there under our name is not used.
fn refuse_strangers(socket_dir: &Utf8Path, identity: &Identity) -> Result<(), PostgresError> {
    let meta = std::fs::symlink_metadata(socket_dir).doing("look at", socket_dir)?;
    let ours = [rustix::process::geteuid().as_raw(), identity.user().uid];
    if meta.is_dir() && ours.contains(&meta.uid()) {
        return Ok(());
    }
    Err(std::io::Error::new(
        ErrorKind::AlreadyExists,
        format!("it belongs to uid {} or is no folder", meta.uid()),
    ))
    .doing("use for the socket", socket_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_folder_gets_a_short_socket_path_of_its_own() {
        let near = place(Utf8Path::new("/var/lib/lockstep/postgres"), 0);
        assert_eq!(near, "/var/lib/lockstep/postgres/socket");
        let deep = Utf8PathBuf::from(format!("/{}", "x".repeat(120)));
        let other = Utf8PathBuf::from(format!("/{}", "y".repeat(120)));
        assert!(place(&deep, 7).join(SOCKET_FILE).as_str().len() <= PATH_CAP);
        assert!(place(&deep, 7).as_str().starts_with("/tmp/lockstep-7-"));
        assert_ne!(place(&deep, 7), place(&other, 7));
    }
}
