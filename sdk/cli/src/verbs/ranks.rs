//! `ranks`.

use std::time::Duration;

use lockstep_api::{ArrivalMap, AttemptState, JobId, Lane, RankArrival};
use lockstep_client::Client;

use crate::args::{Global, RanksArgs};
use crate::failure::Failure;
use crate::follow::patiently;
use crate::out::{Out, or_dash, table};
use crate::settings::client;
use crate::verbs::find;

/// Between two looks of `--watch`.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Shows who has entered the collective under way; with `--watch` again and again, to the job's end.
pub(crate) async fn ranks(global: &Global, args: RanksArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let id = find::job_id(&client, &args.job).await?;
    tokio::select! {
        shown = show(&client, id, args.watch, out) => shown,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            Err(Failure::Interrupted("interrupted; the job goes on".to_owned()).into())
        }
    }
}

async fn show(client: &Client, id: JobId, watch: bool, out: Out) -> anyhow::Result<()> {
    loop {
        // Asked before the map is read: the last one shown is of the end.
        let is_last = !watch || {
            let job = patiently(|text| out.note(text), async || client.job(id).await).await?;
            job.summary.state.is_final()
        };
        let map = patiently(|text| out.note(text), async || client.ranks(id).await).await?;
        out.data(&map, describe)?;
        if is_last || out.is_unread() {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn describe(map: &ArrivalMap) -> String {
    if map.ranks.is_empty() {
        return map.summary.clone();
    }
    let mut rows = table(&[
        "RANK",
        "NODE",
        "PID",
        "PHASE",
        "STEP",
        "SINCE",
        "COLLECTIVE",
        "IN IT",
        "STATE",
        "HEARD",
    ]);
    let lane = map.collective.as_ref().map(|it| it.lane);
    for rank in &map.ranks {
        rows.add_row([
            rank.rank.to_string(),
            rank.node_name.clone(),
            or_dash(rank.pid),
            or_dash(rank.phase),
            or_dash(rank.step),
            or_dash(rank.phase_ms.map(seconds)),
            collective(rank, lane),
            or_dash(rank.waited_ms.map(seconds)),
            state(rank),
            rank.seen_ms.map_or_else(|| "never".to_owned(), |ms| format!("{} ago", seconds(ms))),
        ]);
    }
    let state =
        map.state.map_or_else(String::new, |state: AttemptState| format!("attempt {state}: "));
    format!("{}\n{state}{}", rows.trim_fmt(), map.summary)
}

/// `41 bucket 3 of 9`, `41 of lane 1 bucket 3 of 9`
fn collective(rank: &RankArrival, lane: Option<Lane>) -> String {
    let lane = lane.filter(|lane| *lane != Lane(0));
    let lane = lane.map_or_else(String::new, |lane| format!(" of lane {lane}"));
    match (rank.entered, &rank.what) {
        (Some(entered), Some(what)) => format!("{entered}{lane} {what}"),
        _ => "-".to_owned(),
    }
}

fn state(rank: &RankArrival) -> String {
    let mut text = rank.standing.as_str().to_owned();
    if rank.is_stopped {
        text.push_str(", stopped");
    }
    if let Some(left) = rank.pause_left_ms {
        text.push_str(&format!(", busy for {} at most", seconds(left)));
    }
    text
}

/// `5.1s`
fn seconds(ms: i64) -> String {
    format!("{}.{}s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_says_who_waits_and_the_sentence_who_is_missing() {
        let rank = |rank: i32, standing: &str| {
            json!({
                "rank": rank, "node_id": "018f0000-0000-7000-8000-000000000000", "node_name": "beta", "pid": 70 + rank,
                "phase": "data", "phase_ms": 5120, "step": 12, "standing": standing, "entered": 40 + rank, "left": 40,
                "what": "bucket 3 of 9", "waited_ms": null, "pause_left_ms": null, "is_stopped": rank == 0,
                "seen_ms": 300
            })
        };
        let map = json!({
            "attempt_id": null, "state": "running", "generation": 1,
            "collective": { "sequence": 41, "what": "bucket 3 of 9", "waited_ms": 5000 },
            "ranks": [rank(0, "missing"), rank(1, "entered")],
            "summary": "rank 0 is late", "at": "2026-01-01T00:00:00Z"
        });
        let text = describe(&serde_json::from_value(map.clone()).unwrap());
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert!(lines[0].starts_with("RANK") && lines[0].ends_with("HEARD"), "{text}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(lines[1]),
            "0 beta 70 data 12 5.1s 40 bucket 3 of 9 - missing, stopped 0.3s ago"
        );
        assert_eq!(words(lines[2]), "1 beta 71 data 12 5.1s 41 bucket 3 of 9 - entered 0.3s ago");
        assert_eq!(lines[3], "attempt running: rank 0 is late");
        let mut map = map;
        map["collective"]["lane"] = json!(1);
        let text = describe(&serde_json::from_value(map).unwrap());
        assert!(text.contains(" 41 of lane 1 bucket 3 of 9 "), "{text}");
    }
}
