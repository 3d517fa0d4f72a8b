//! Which server, which token: `~/.config/lockstep/config.toml`, one table for each profile.
//!
//! ```toml
//! [profiles.default]
//! url = "http://127.0.0.1:7878"
//! token = "lsk_…"
//! ```
//!
//! The file holds secrets: it is written with mode 0600, and replaced whole.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

/// The profile that is meant when none is named.
pub const DEFAULT_PROFILE: &str = "default";

/// One server and how to speak to it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `http://HOST:PORT`
    pub url: String,
    /// `lsk_…`
    pub token: String,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("url", &self.url).finish_non_exhaustive()
    }
}

/// All profiles of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profiles {
    /// By name.
    #[serde(default)]
    pub profiles: BTreeMap<String, Profile>,
}

/// What can be wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Reading or writing.
    #[error("cannot {doing} {path}")]
    File {
        /// `read`, `write`.
        doing: &'static str,
        /// Which file.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not the expected form.
    #[error("{path} is not a list of profiles: {reason}")]
    Form {
        /// Which file.
        path: Utf8PathBuf,
        /// Line and reason, without the line's text: it may hold a token.
        reason: String,
    },
}

/// Where the file lies, given `$LOCKSTEP_CONFIG`, `$XDG_CONFIG_HOME` and `$HOME` as far as they are set.
pub fn default_path(
    config: Option<&str>,
    xdg_config_home: Option<&str>,
    home: Option<&str>,
) -> Option<Utf8PathBuf> {
    let set = |value: Option<&str>| value.filter(|text| !text.is_empty()).map(Utf8PathBuf::from);
    set(config).or_else(|| {
        let folder = set(xdg_config_home).or_else(|| Some(set(home)?.join(".config")))?;
        Some(folder.join("lockstep/config.toml"))
    })
}

impl Profiles {
    /// Reads the file; none there is no profiles.
    ///
    /// # Errors
    /// A file that cannot be read or understood.
    pub fn read(path: &Utf8Path) -> Result<Self, ProfileError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(source) => {
                return Err(ProfileError::File { doing: "read", path: path.to_owned(), source });
            }
        };
        toml::from_str(&text).map_err(|error| ProfileError::Form {
            path: path.to_owned(),
            reason: match error.span() {
                Some(span) => {
                    let line = 1 + text[..span.start.min(text.len())].matches('\n').count();
                    format!("line {line}: {}", error.message())
                }
                None => error.message().to_owned(),
            },
        })
    }

    /// Replaces the file, mode 0600. Missing folders are made.
    ///
    /// # Errors
    /// When it cannot be written; the old file is then still whole.
    pub fn write(&self, path: &Utf8Path) -> Result<(), ProfileError> {
        let failed = |source| ProfileError::File { doing: "write", path: path.to_owned(), source };
        let text = toml::to_string_pretty(self).expect("profiles are tables of strings");
        let folder = match path.parent() {
            Some(folder) if !folder.as_str().is_empty() => folder,
            _ => Utf8Path::new("."),
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        // A temporary file is made with mode 0600 and keeps it.
        let mut file =
            tempfile::NamedTempFile::with_prefix_in(".config-", folder).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Sets one profile in the file and leaves the others as they are.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`].
    pub fn set(path: &Utf8Path, name: &str, profile: Profile) -> Result<(), ProfileError> {
        let mut all = Self::read(path)?;
        all.profiles.insert(name.to_owned(), profile);
        all.write(path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn profile(token: &str) -> Profile {
        Profile { url: "http://127.0.0.1:7878".to_owned(), token: token.to_owned() }
    }

    #[test]
    fn a_profile_is_set_beside_the_others_in_a_file_for_the_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().join("a/b/config.toml")).unwrap();
        assert_eq!(Profiles::read(&path).unwrap(), Profiles::default());
        Profiles::set(&path, "default", profile("lsk_1")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        Profiles::set(&path, "other", profile("lsk_2")).unwrap();
        let all = Profiles::read(&path).unwrap();
        assert_eq!(all.profiles["default"], profile("lsk_1"));
        assert_eq!(all.profiles["other"], profile("lsk_2"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn neither_debug_nor_an_error_shows_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().join("config.toml")).unwrap();
        assert!(!format!("{:?}", profile("lsk_secret")).contains("secret"));
        for text in [
            "[profiles.a]\nurl = 1\ntoken = \"lsk_secret\"",
            "\n[profiles.a\ntoken = \"lsk_secret\"",
            "[profiles.a]\ntoken = lsk_secret",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Profiles::read(&path).unwrap_err();
            assert!(!format!("{error:?} {error}").contains("secret"), "{error}");
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }

    #[test]
    fn the_path_is_the_first_that_is_set() {
        let path =
            |config, xdg, home| default_path(config, xdg, home).map(Utf8PathBuf::into_string);
        assert_eq!(path(Some("/c.toml"), Some("/x"), Some("/h")).unwrap(), "/c.toml");
        assert_eq!(path(None, Some("/x"), Some("/h")).unwrap(), "/x/lockstep/config.toml");
        assert_eq!(
            path(Some(""), Some(""), Some("/h")).unwrap(),
            "/h/.config/lockstep/config.toml"
        );
        assert_eq!(path(None, None, None), None);
    }
}
