//! The admin's token: made once, kept in the data folder, made again only when the server refuses it.

use std::process::Stdio;

use anyhow::Context as _;
use camino::Utf8Path;
use lockstep_api::{CreateJoinToken, ProblemCode};
use lockstep_client::Client;
use serde::{Deserialize, Serialize};

use crate::up::folder::{Folder, replace_private};

/// Lifetime of the agent's join token: the longest there is, as the agent may be restarted at any time.
const JOIN_TTL_SECONDS: u32 = 86_400;

/// What the folder keeps.
#[derive(Deserialize, Serialize)]
struct Stored {
    token: String,
}

/// What `lockstep-server init` prints, as far as it is needed here.
#[derive(Deserialize)]
struct Made {
    token: String,
}

/// The stored token, if there is one that can be read.
pub(crate) fn stored(folder: &Folder) -> Option<String> {
    let text = std::fs::read_to_string(folder.credentials()).ok()?;
    serde_json::from_str::<Stored>(&text).ok().map(|stored| stored.token)
}

/// Makes organisation, project and admin if absent, and a new token, which is stored.
pub(crate) async fn make(
    program: &Utf8Path,
    database_url: &str,
    folder: &Folder,
) -> anyhow::Result<String> {
    let output = tokio::process::Command::new(program)
        .arg("init")
        // Not as an argument: it may hold a password.
        .env("LOCKSTEP_SERVER_DATABASE_URL", database_url)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("preparing the database failed ({}):\n{}", output.status, words.trim());
    }
    let made: Made = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("reading what `{program} init` printed"))?;
    let stored = Stored { token: made.token };
    replace_private(&folder.credentials(), &serde_json::to_string(&stored)?)?;
    Ok(stored.token)
}

/// Whether the server takes the token as the admin's.
pub(crate) async fn is_good(client: &Client) -> anyhow::Result<bool> {
    match client.me().await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(ProblemCode::Unauthenticated) => Ok(false),
        Err(error) => Err(error).context("asking the server who we are"),
    }
}

/// Puts a fresh join token where the agent reads it.
pub(crate) async fn refresh_join_token(client: &Client, folder: &Folder) -> anyhow::Result<()> {
    let request = CreateJoinToken { ttl_seconds: JOIN_TTL_SECONDS };
    let token = client.create_join_token(&request).await.context("making a join token")?;
    replace_private(&folder.join_token(), &format!("{}\n", token.token))
}
