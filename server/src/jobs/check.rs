//! The check at submit: `lockstep-rank check`, a child process that may use only so much.
//!
//! It compiles and runs the submitter's components, so whatever happens to it must not happen to the server.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use lockstep_api::{CheckRequest, CheckResponse, CheckSummary, FieldError};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::app::App;
use crate::problem::Problem;

/// Longest wait for a place among the checks that run.
const QUEUE_TIME: Duration = Duration::from_secs(20);
/// Most processor time of a check, all threads together, seconds.
const PROCESSOR_SECONDS: u64 = 120;
/// Memory of a check beyond the guests' own ceilings, bytes: compiler, model, one batch.
const MEMORY_BYTES: u64 = 4 << 30;
/// Largest file that a check may write (a compiled component), bytes.
const FILE_BYTES: u64 = 256 << 20;
/// Files that a check may hold open: the dataset's, and a few of its own.
const OPEN_FILES: u64 = 16_384;
/// Longest answer that is read, bytes.
const ANSWER_BYTES: u64 = 1 << 20;
/// Longest text on standard error that goes to the log, bytes.
const COMPLAINT_BYTES: u64 = 16 << 10;

/// Asks `lockstep-rank check`. A job that does not fit, or whose components break the check, is refused.
pub(crate) async fn check(app: &App, request: &CheckRequest) -> Result<CheckSummary, Problem> {
    let text = serde_json::to_vec(request).map_err(Problem::internal)?;
    let _place = timeout(QUEUE_TIME, app.checks.acquire())
        .await
        .map_err(|_| Problem::Unavailable("many jobs are being checked just now".to_owned()))?
        .map_err(Problem::internal)?;
    let mut child = Command::new(&app.settings.rank_binary)
        .arg("check")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            Problem::internal(format!("starting {}: {error}", app.settings.rank_binary))
        })?;
    // It waits for its request on standard input, so the limits are there before it does anything.
    limit(&child, request).map_err(Problem::internal)?;
    match timeout(app.settings.check_time, talk(&mut child, &text)).await {
        Ok(end) => verdict(end.map_err(Problem::internal)?),
        Err(_) => {
            child.kill().await.map_err(Problem::internal)?;
            Err(refused(format!("the check did not end within {:?}", app.settings.check_time)))
        }
    }
}

fn limit(child: &Child, request: &CheckRequest) -> rustix::io::Result<()> {
    let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw)
    else {
        return Ok(());
    };
    let guests = request.spec.loader.limits.memory_mib + request.spec.loss.limits.memory_mib;
    let limits = [
        (Resource::Cpu, PROCESSOR_SECONDS),
        (Resource::Data, MEMORY_BYTES + (u64::from(guests) << 20)),
        (Resource::Fsize, FILE_BYTES),
        (Resource::Nofile, OPEN_FILES),
        (Resource::Core, 0),
    ];
    for (resource, most) in limits {
        let most = Some(most);
        match prlimit(Some(pid), resource, Rlimit { current: most, maximum: most }) {
            // It has ended already: its end will say why.
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            // The server itself may have less than that.
            Err(rustix::io::Errno::PERM) if resource == Resource::Nofile => {}
            outcome => drop(outcome?),
        }
    }
    Ok(())
}

/// How the child ended and what it said.
struct End {
    status: ExitStatus,
    answer: Vec<u8>,
    complaint: Vec<u8>,
}

async fn talk(child: &mut Child, request: &[u8]) -> std::io::Result<End> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // One that ends without reading says why by its status.
            stdin.write_all(request).await.or_else(|error| match error.kind() {
                std::io::ErrorKind::BrokenPipe => Ok(()),
                _ => Err(error),
            })?;
        }
        Ok(())
    };
    let (fed, answer, complaint): (std::io::Result<()>, _, _) =
        tokio::join!(feed, hear(stdout, ANSWER_BYTES), hear(stderr, COMPLAINT_BYTES));
    fed?;
    Ok(End { answer: answer?, complaint: complaint?, status: child.wait().await? })
}

/// Keeps the first `most` bytes and reads on, so that the child never blocks on a full pipe.
async fn hear(pipe: Option<impl AsyncRead + Unpin>, most: u64) -> std::io::Result<Vec<u8>> {
    let Some(mut pipe) = pipe else { return Ok(Vec::new()) };
    let mut kept = Vec::new();
    (&mut pipe).take(most).read_to_end(&mut kept).await?;
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(kept)
}

fn verdict(end: End) -> Result<CheckSummary, Problem> {
    use std::os::unix::process::ExitStatusExt as _;

    let complaint = String::from_utf8_lossy(&end.complaint).trim_end().to_owned();
    if let Some(signal) = end.status.signal() {
        tracing::warn!(signal, complaint, "a check was ended by a signal");
        return Err(refused(format!(
            "the check was ended by signal {signal}: it broke or used more than it may"
        )));
    }
    if !end.status.success() {
        return Err(Problem::internal(format!("the check ended with {}: {complaint}", end.status)));
    }
    match serde_json::from_slice(&end.answer) {
        Ok(CheckResponse::Accepted(summary)) => Ok(summary),
        Ok(CheckResponse::Refused { errors }) => Err(Problem::Refused(errors)),
        Err(error) => Err(Problem::internal(format!(
            "the check's answer: {error}; it complained: {complaint}"
        ))),
    }
}

fn refused(message: String) -> Problem {
    Problem::Refused(vec![FieldError::new("", message)])
}
