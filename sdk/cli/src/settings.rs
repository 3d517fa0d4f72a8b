//! Which server and token, and where files lie: flags, then environment (both through clap), then the profile.

use anyhow::Context as _;
use camino::Utf8PathBuf;
use lockstep_client::profile::{Profile, Profiles, default_path};
use lockstep_client::{Client, ClientOptions};

use crate::args::Global;
use crate::failure::Failure;

/// A variable that is not ours and so has no flag.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the command line reads its environment"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The file with the profiles.
pub(crate) fn config_path(global: &Global) -> anyhow::Result<Utf8PathBuf> {
    if let Some(path) = &global.config {
        return Ok(path.clone());
    }
    let (xdg, home) = (variable("XDG_CONFIG_HOME"), variable("HOME"));
    default_path(None, xdg.as_deref(), home.as_deref()).ok_or_else(|| {
        let text = "HOME is not set; name the settings file with --config or LOCKSTEP_CONFIG";
        Failure::Usage(text.to_owned()).into()
    })
}

/// Where `up` keeps everything unless told otherwise.
pub(crate) fn default_data_dir() -> anyhow::Result<Utf8PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/lockstep".into());
    }
    let base = variable("XDG_DATA_HOME").map(Utf8PathBuf::from);
    let base = base.or_else(|| Some(Utf8PathBuf::from(variable("HOME")?).join(".local/share")));
    base.map(|base| base.join("lockstep")).ok_or_else(|| {
        Failure::Usage("HOME is not set; name the folder with --data-dir".to_owned()).into()
    })
}

/// The server and token to speak with.
pub(crate) fn credentials(global: &Global) -> anyhow::Result<Profile> {
    let (url, token) = (global.url.clone(), global.token.clone());
    if let (Some(url), Some(token)) = (&url, &token) {
        return Ok(Profile { url: url.clone(), token: token.clone() });
    }
    let path = config_path(global)?;
    let mut profiles = Profiles::read(&path).context("reading settings")?;
    match profiles.profiles.remove(&global.profile) {
        // A stored token is for the server it was stored with: another one must not learn it.
        Some(profile) if token.is_none() && url.as_ref().is_some_and(|url| !is_same(url, &profile.url)) => {
            Err(Failure::NoCredentials(format!(
                "profile {:?} in {path} is for {}, and its token is not sent elsewhere; set LOCKSTEP_TOKEN or --token",
                global.profile, profile.url
            ))
            .into())
        }
        Some(profile) => Ok(Profile {
            url: url.unwrap_or(profile.url),
            token: token.unwrap_or(profile.token),
        }),
        None if url.is_some() => Err(Failure::NoCredentials(format!(
            "no token known: {path} has no profile {:?}; set LOCKSTEP_TOKEN or --token",
            global.profile
        ))
        .into()),
        None => Err(Failure::NoCredentials(format!(
            "no server known: {path} has no profile {:?}. `lockstep up` makes one; or set LOCKSTEP_URL and LOCKSTEP_TOKEN",
            global.profile
        ))
        .into()),
    }
}

/// Whether two spellings name one server.
fn is_same(left: &str, right: &str) -> bool {
    left.trim_end_matches('/') == right.trim_end_matches('/')
}

/// A client for the caller.
pub(crate) fn client(global: &Global) -> anyhow::Result<Client> {
    let Profile { url, token } = credentials(global)?;
    Ok(Client::with_options(&url, Some(&token), ClientOptions::default())?)
}

/// The web page of a job.
pub(crate) fn job_page(client: &Client, id: lockstep_api::JobId) -> String {
    format!("{}/jobs/{id}", client.url())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(config: Utf8PathBuf) -> Global {
        Global {
            json: false,
            profile: "default".to_owned(),
            url: None,
            token: None,
            config: Some(config),
        }
    }

    #[test]
    fn flags_win_over_the_profile_but_its_token_goes_to_its_own_server_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(dir.path().join("config.toml")).unwrap();
        let mut global = global(path.clone());
        let error = credentials(&global).unwrap_err().to_string();
        assert!(error.contains("lockstep up") && error.contains("LOCKSTEP_TOKEN"), "{error}");
        global.url = Some("http://b:2".to_owned());
        let error = credentials(&global).unwrap_err().to_string();
        assert!(error.starts_with("no token known"), "{error}");
        global.url = None;

        let profile = Profile { url: "http://a:1".to_owned(), token: "lsk_a".to_owned() };
        Profiles::set(&path, "default", profile.clone()).unwrap();
        assert_eq!(credentials(&global).unwrap(), profile);
        global.url = Some("http://b:2".to_owned());
        let error = credentials(&global).unwrap_err().to_string();
        assert!(error.contains("http://a:1") && error.contains("--token"), "{error}");
        assert!(!error.contains("lsk_a"), "{error}");
        global.url = Some("http://a:1/".to_owned());
        assert_eq!(
            credentials(&global).unwrap().token,
            "lsk_a",
            "the same server, spelled otherwise"
        );
        (global.url, global.token) = (None, Some("lsk_b".to_owned()));
        let mixed = credentials(&global).unwrap();
        assert_eq!((mixed.url.as_str(), mixed.token.as_str()), ("http://a:1", "lsk_b"));
    }
}
