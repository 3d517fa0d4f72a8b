//! `logs`.

use std::time::Duration;

use chrono::Local;
use lockstep_api::{JobId, LogLevel, LogLine, LogSource, ReadLog};
use lockstep_client::Client;

use crate::args::{Global, LogsArgs};
use crate::failure::Failure;
use crate::follow::{Watch, patiently};
use crate::out::Out;
use crate::settings::client;
use crate::verbs::find;

/// Lines of one request.
const PAGE: u32 = 1000;
/// The longest time between two looks for new lines.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Prints a job's log; with `--follow` to the job's end.
pub(crate) async fn logs(global: &Global, args: LogsArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let id = find::job_id(&client, &args.job).await?;
    tokio::select! {
        done = print(&client, id, &args, out) => done,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            Err(Failure::Interrupted("interrupted; the job goes on".to_owned()).into())
        }
    }
}

async fn print(client: &Client, id: JobId, args: &LogsArgs, out: Out) -> anyhow::Result<()> {
    let mut after = 0;
    if let Some(count) = args.tail {
        let query = ReadLog { after: 0, limit: Some(count), tail: true };
        after = print_lines(&client.log(id, &query).await?, 0, out)?;
    }
    let mut watch = Watch::new(client, id);
    loop {
        // Asked before the lines are read: a job that had ended by then writes no more.
        let has_ended = !args.follow || {
            let job = patiently(|text| out.note(text), async || client.job(id).await).await?;
            job.summary.state.is_final()
        };
        after = print_from(client, id, after, out).await?;
        if has_ended || out.is_unread() {
            return Ok(());
        }
        watch.changed(LOOK_AGAIN).await;
    }
}

/// Prints everything after `after`, page by page; answers the last number printed.
async fn print_from(client: &Client, id: JobId, mut after: i64, out: Out) -> anyhow::Result<i64> {
    loop {
        let query = ReadLog { after, limit: Some(PAGE), tail: false };
        let lines = patiently(|text| out.note(text), async || client.log(id, &query).await).await?;
        after = print_lines(&lines, after, out)?;
        if lines.len() < usize::try_from(PAGE)? {
            return Ok(after);
        }
    }
}

fn print_lines(lines: &[LogLine], after: i64, out: Out) -> anyhow::Result<i64> {
    for line in lines {
        if out.is_json() {
            out.json(line)?;
        } else {
            out.line(&format(line));
        }
    }
    Ok(lines.last().map_or(after, |line| line.seq))
}

fn format(line: &LogLine) -> String {
    let at = line.at.with_timezone(&Local).format("%H:%M:%S%.3f");
    let who = match (line.source, line.rank) {
        (LogSource::Rank, Some(rank)) => format!("rank {rank}"),
        (source, Some(rank)) => format!("{source} rank {rank}"),
        (source, None) => source.to_string(),
    };
    let level = match line.level {
        LogLevel::Info => String::new(),
        LogLevel::Debug | LogLevel::Warn | LogLevel::Error => format!(" {}", line.level),
    };
    format!("{at} {who}{level}: {}", line.text)
}
