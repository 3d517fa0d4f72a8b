//! Real servers, agents and ranks on one machine, asserted from outside. Nothing here reaches into a program.

mod belongings;
mod chaos;
mod course;
mod namespace;
mod process;
mod service;

pub use belongings::Belongings;
pub use chaos::{Dice, Draw, Outcome, References};
pub use course::WHOLE_JOB;
pub use namespace::Cable;
pub use process::{Process, freeze, is_running, kill_now, programs, repository};
pub use service::{LEASE, Service};

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use camino::Utf8PathBuf;
use lockstep_api::{JobId, JobView};
use lockstep_client::Client;

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `look` answers something; fails with `what` at the deadline.
///
/// # Errors
/// The deadline.
pub async fn wait_for<T, F>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = Option<T>>,
{
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        if deadline <= start.elapsed() {
            bail!("{what}: not within {deadline:?}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until the job satisfies `condition`; fails at once if it ends without.
///
/// # Errors
/// The deadline; an end of the job that does not satisfy the condition; the server's refusal.
pub async fn wait_for_job(
    client: &Client,
    id: JobId,
    what: &str,
    deadline: Duration,
    condition: impl Fn(&JobView) -> bool,
) -> anyhow::Result<JobView> {
    let start = Instant::now();
    loop {
        let job = client.job(id).await?;
        if condition(&job) {
            return Ok(job);
        }
        if job.summary.state.is_final() || deadline <= start.elapsed() {
            bail!("{what}: not within {:?} of {deadline:?}; the job: {job:#?}", start.elapsed());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The machine's time: tests compare it with what the server wrote down on the same machine.
#[expect(
    clippy::disallowed_methods,
    reason = "a test stands outside of the programs and their clocks"
)]
pub fn now() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now()
}

/// The interpreter that `cargo xtask setup` gave the reference libraries.
///
/// # Errors
/// When nothing says where it is.
#[expect(clippy::disallowed_methods, reason = "a test's own settings")]
pub fn python() -> anyhow::Result<Utf8PathBuf> {
    if let Ok(path) = std::env::var("LOCKSTEP_PYTHON") {
        return Ok(path.into());
    }
    let home = std::env::var("HOME").context("HOME is not set")?;
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| format!("{home}/.cache"));
    Ok(Utf8PathBuf::from(cache).join("lockstep/python/bin/python"))
}
