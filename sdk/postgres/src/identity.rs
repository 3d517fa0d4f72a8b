//! As whom Postgres runs. It refuses to run as root, and `initdb` refuses a uid without a name.

use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use camino::Utf8Path;

use crate::PostgresError;
use crate::error::IoContext as _;

/// Who may be used in root's place, in this order.
const STAND_INS: [&str; 3] = ["lockstep", "postgres", "nobody"];
/// Bits of `CapEff`: chown, setgid, setuid.
const NEEDED_CAPABILITIES: u64 = 1 << 0 | 1 << 6 | 1 << 7;

/// A line of passwd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// As whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The caller.
    Caller(User),
    /// Another user, by setuid. Its files belong to that user.
    Other(User),
    /// Another user's number inside a user namespace that maps it to the caller, where setuid or the folder's
    /// reach does not allow the former. Files belong to the caller outside.
    Namespaced(User),
}

impl Identity {
    /// The user's name as Postgres will see it.
    pub(crate) fn user(&self) -> &User {
        match self {
            Self::Caller(user) | Self::Other(user) | Self::Namespaced(user) => user,
        }
    }

    /// Chooses for a cluster in `data` (which need not exist) within `folder` (which must). An existing cluster's
    /// owner decides.
    pub(crate) fn choose(folder: &Utf8Path, data: &Utf8Path) -> Result<Self, PostgresError> {
        let euid = rustix::process::geteuid().as_raw();
        if euid != 0 {
            return Ok(match lookup(&euid.to_string()) {
                Some(user) => Self::Caller(user),
                None => Self::Namespaced(stand_in()?),
            });
        }
        if data.exists() {
            let owner = std::fs::metadata(data).doing("look at", data)?.uid();
            if owner == 0 {
                return stand_in().map(Self::Namespaced);
            }
            let user = lookup(&owner.to_string()).ok_or_else(|| PostgresError::NoIdentity {
                why: format!("{data} belongs to uid {owner}, which has no entry in passwd"),
            })?;
            return Ok(Self::Other(user));
        }
        let user = stand_in()?;
        if can_become(user.uid) && is_reachable(folder, &user) {
            Ok(Self::Other(user))
        } else {
            Ok(Self::Namespaced(user))
        }
    }

    /// Gives a new file or folder to whoever Postgres runs as.
    pub(crate) fn give(&self, path: &Utf8Path) -> Result<(), PostgresError> {
        match self {
            Self::Caller(_) | Self::Namespaced(_) => Ok(()),
            Self::Other(user) => {
                std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).doing("chown", path)
            }
        }
    }
}

fn stand_in() -> Result<User, PostgresError> {
    STAND_INS.iter().find_map(|name| lookup(name)).ok_or_else(|| PostgresError::NoIdentity {
        why: format!("none of the users {} exists", STAND_INS.join(", ")),
    })
}

/// By name or number: `/etc/passwd`, then `getent`, which asks directories as well.
pub(crate) fn lookup(key: &str) -> Option<User> {
    let local = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find_user(&local, key).or_else(|| {
        let output = Command::new("getent")
            .args(["passwd", key])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        find_user(&String::from_utf8_lossy(&output.stdout), key)
    })
}

fn find_user(passwd: &str, key: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        if name != key && uid != key {
            return None;
        }
        Some(User { name: name.to_owned(), uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    })
}

/// Whether this process may become `uid`: it has the capabilities, and the number exists in its user namespace.
fn can_become(uid: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    has_capabilities(&status) && is_mapped(&map, uid)
}

fn has_capabilities(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|bits| bits & NEEDED_CAPABILITIES == NEEDED_CAPABILITIES)
}

fn is_mapped(uid_map: &str, uid: u32) -> bool {
    uid_map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        match numbers[..] {
            [first, _, count] => (first..first + count).contains(&u64::from(uid)),
            _ => false,
        }
    })
}

/// Whether `user` may walk down to `folder`, by the mode bits of every folder on the way.
fn is_reachable(folder: &Utf8Path, user: &User) -> bool {
    folder.ancestors().all(|step| {
        std::fs::metadata(step).is_ok_and(|meta| {
            let shift = if meta.uid() == user.uid {
                6
            } else if meta.gid() == user.gid {
                3
            } else {
                0
            };
            meta.mode() >> shift & 1 == 1
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let passwd = "root:x:0:0::/root:/bin/bash\npostgres:x:101:104::/:/bin/sh\n";
        let postgres = User { name: "postgres".to_owned(), uid: 101, gid: 104 };
        assert_eq!(find_user(passwd, "postgres"), Some(postgres.clone()));
        assert_eq!(find_user(passwd, "101"), Some(postgres));
        assert_eq!(find_user(passwd, "10"), None);
    }

    #[test]
    fn a_number_outside_the_namespace_cannot_be_had() {
        assert!(is_mapped("         0          0 4294967295\n", 101));
        assert!(!is_mapped("0 1000 1\n", 101));
        assert!(is_mapped("0 1000 1\n1 100000 65536\n", 101));
    }

    #[test]
    fn without_the_capabilities_nobody_else_can_be_become() {
        assert!(has_capabilities("CapEff:\t000001ffffffffff\n"));
        assert!(!has_capabilities("CapEff:\t0000000000000000\n"));
        assert!(!has_capabilities("CapEff:\t0000000000000041\n"));
    }

    #[test]
    fn a_private_folder_on_the_way_is_not_reachable() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(dir.path()).unwrap();
        let stranger = User { name: "x".to_owned(), uid: 4_000_000, gid: 4_000_000 };
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!is_reachable(folder, &stranger));
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).unwrap();
        assert!(is_reachable(folder, &stranger));
    }
}
