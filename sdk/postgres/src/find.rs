//! Where the machine keeps its Postgres programs.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};

use crate::PostgresError;

/// Oldest major version that will do.
pub const MIN_MAJOR: u32 = 14;

/// Folders that packages use, with `*` for a version. Debian and Ubuntu do not put `initdb` on PATH.
const PACKAGED: &[&str] = &[
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/lib64/pgsql/bin",
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/Library/PostgreSQL/*/bin",
    "/usr/local/pgsql/bin",
    "/nix/var/nix/profiles/*/bin",
];

/// A folder with `postgres` and `initdb` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Programs {
    pub(crate) folder: Utf8PathBuf,
    pub(crate) major: u32,
}

impl Programs {
    pub(crate) fn path(&self, program: &str) -> Utf8PathBuf {
        self.folder.join(program)
    }

    /// What is in `folder`, if both programs are.
    fn in_folder(folder: &Utf8Path) -> Option<Self> {
        if !folder.join("initdb").is_file() {
            return None;
        }
        let text = stdout_of(Command::new(folder.join("postgres")).arg("--version"))?;
        Some(Self { folder: folder.to_owned(), major: parse_major(&text)? })
    }
}

/// The programs to use: those of `wanted` (hard, when a cluster exists), else the first that are new enough.
///
/// Order: `given`, `LOCKSTEP_PG_BIN`, PATH, `pg_config --bindir`, the folders of packages from the newest down.
pub(crate) fn locate(
    given: Option<&Utf8Path>,
    wanted: Option<(u32, &Utf8Path)>,
) -> Result<Programs, PostgresError> {
    let mut looked = Vec::new();
    let mut majors = BTreeSet::new();
    let named = given.map(Utf8Path::to_owned).or_else(|| utf8_env("LOCKSTEP_PG_BIN"));
    let folders = match named {
        Some(folder) => vec![folder],
        None => on_path().into_iter().chain(from_pg_config()).chain(packaged()).collect(),
    };
    for folder in folders {
        if looked.contains(&folder) {
            continue;
        }
        if let Some(programs) = Programs::in_folder(&folder) {
            let fits = match wanted {
                Some((major, _)) => programs.major == major,
                None => MIN_MAJOR <= programs.major,
            };
            if fits {
                return Ok(programs);
            }
            majors.insert(programs.major);
        }
        looked.push(folder);
    }
    Err(match wanted {
        Some((major, data)) => PostgresError::MajorMissing {
            data: data.to_owned(),
            wanted: major,
            found: if majors.is_empty() { "none".to_owned() } else { format!("{majors:?}") },
        },
        None => PostgresError::NotFound { min: MIN_MAJOR, looked, hint: install_hint() },
    })
}

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0)` → 15.
fn parse_major(version: &str) -> Option<u32> {
    let number =
        version.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

fn stdout_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()
}

/// `var_os` rather than `var`: this crate has no settings of its own to read, only where the machine's programs are.
fn utf8_env(name: &str) -> Option<Utf8PathBuf> {
    std::env::var_os(name)
        .and_then(|value| value.into_string().ok())
        .filter(|value| !value.is_empty())
        .map(Utf8PathBuf::from)
}

fn on_path() -> Vec<Utf8PathBuf> {
    let Some(path) = std::env::var_os("PATH") else { return Vec::new() };
    std::env::split_paths(&path)
        .filter_map(|folder| Utf8PathBuf::from_path_buf(folder).ok())
        .filter(|folder| folder.join("postgres").is_file() && folder.join("initdb").is_file())
        // Through links: `/usr/local/bin/postgres` may point into the folder that has everything.
        .map(|folder| {
            let real = folder.join("postgres").canonicalize_utf8().ok();
            match real.as_deref().and_then(Utf8Path::parent) {
                Some(parent) if parent.join("initdb").is_file() => parent.to_owned(),
                Some(_) | None => folder,
            }
        })
        .collect()
}

fn from_pg_config() -> Option<Utf8PathBuf> {
    let folder = stdout_of(Command::new("pg_config").arg("--bindir"))?;
    Some(Utf8PathBuf::from(folder.trim()))
}

/// The folders of [`PACKAGED`] that exist, the newest version of each first.
fn packaged() -> Vec<Utf8PathBuf> {
    PACKAGED.iter().flat_map(|pattern| expand(pattern)).collect()
}

/// Existing folders for a pattern with at most one `*`, the highest number first.
fn expand(pattern: &str) -> Vec<Utf8PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else {
        return Some(Utf8PathBuf::from(pattern)).into_iter().filter(|path| path.is_dir()).collect();
    };
    let (parent, prefix) = before.rsplit_once('/').unwrap_or(("", before));
    let Ok(entries) = Utf8Path::new(parent).read_dir_utf8() else { return Vec::new() };
    let mut found: Vec<(u32, Utf8PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().strip_prefix(prefix)?.to_owned();
            let folder = Utf8PathBuf::from(format!("{before}{version}{after}"));
            folder.is_dir().then(|| (parse_major(&version).unwrap_or(0), folder))
        })
        .collect();
    found.sort_by(|left, right| right.cmp(left));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// The one line that installs Postgres on this machine.
fn install_hint() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let command = hint_for(&release);
    format!("Install them with `{command}`, or name their folder in LOCKSTEP_PG_BIN.")
}

fn hint_for(os_release: &str) -> &'static str {
    let ids: Vec<&str> = os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split(' '))
        .collect();
    let is_any = |names: &[&str]| ids.iter().any(|id| names.contains(id));
    if is_any(&["debian", "ubuntu"]) {
        "apt-get install postgresql"
    } else if is_any(&["fedora", "rhel", "centos", "amzn"]) {
        "dnf install postgresql-server"
    } else if is_any(&["suse", "opensuse"]) {
        "zypper install postgresql-server"
    } else if is_any(&["arch"]) {
        "pacman -S postgresql"
    } else if is_any(&["alpine"]) {
        "apk add postgresql"
    } else {
        "brew install postgresql"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_postgres_prints() {
        assert_eq!(parse_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(parse_major("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(parse_major("postgres (PostgreSQL) 9.6.24"), Some(9));
        assert_eq!(parse_major("something else"), None);
    }

    #[test]
    fn a_pattern_gives_the_newest_version_first_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        for version in ["9.6", "14", "15", "100", "junk"] {
            std::fs::create_dir_all(root.join("pg").join(version).join("bin")).unwrap();
        }
        let found = expand(&format!("{root}/pg/*/bin"));
        let names: Vec<_> =
            found.iter().map(|f| f.parent().unwrap().file_name().unwrap()).collect();
        assert_eq!(names, ["100", "15", "14", "9.6", "junk"]);
    }

    #[test]
    fn a_folder_without_programs_is_named_together_with_the_command_that_installs_them() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(dir.path()).unwrap();
        let error = locate(Some(folder), None).unwrap_err().to_string();
        assert!(error.contains(folder.as_str()) && error.contains("LOCKSTEP_PG_BIN"), "{error}");
        assert_eq!(hint_for("NAME=x\nID=debian\n"), "apt-get install postgresql");
        assert_eq!(
            hint_for("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
            "dnf install postgresql-server"
        );
    }

    #[test]
    fn a_cluster_of_another_version_is_never_opened() {
        let error = locate(None, Some((9, Utf8Path::new("/x/data")))).unwrap_err();
        assert!(matches!(error, PostgresError::MajorMissing { wanted: 9, .. }), "{error}");
    }
}
