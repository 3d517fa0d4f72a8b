//! How long failures cost: from the moment a process is hit, by this program's clock, to what the server wrote down, by
//! the same machine's.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use chrono::{DateTime, Utc};
use lockstep_api::{FailureCode, JobId, JobView, Rank};
use lockstep_e2e::{LEASE, Service, freeze, kill_now, wait_for_job};

use crate::peer::{Peer, Turns};
use crate::report::{Row, print};

const JOB: &str = "examples/digits/job.toml";
/// Far longer than a case takes.
const LONG: [&str; 4] = [
    "train.epochs=20000",
    "train.global_batch=128",
    "checkpoint.every_steps=100000",
    "trace.first_steps=0",
];
/// Steps before anything happens.
const WARM_UP: i64 = 50;
/// Longest wait for a case.
const DEADLINE: Duration = Duration::from_secs(90);

/// Seconds from a hit to …
struct Hit {
    /// … the verdict, stored, and the end of the old group.
    named: f64,
    /// … the first step of the next group.
    stepping: f64,
}

/// Measures all cases, the peer's in turn with ours. Its ranks have one node, which is not lost.
pub(crate) async fn recover(runs: u32, peer: Option<&Peer>, json: bool) -> anyhow::Result<()> {
    let mut kills = Vec::new();
    let mut freezes = Vec::new();
    let mut losses = Vec::new();
    let mut peer_kills = Turns::new(peer, "kill -9 of a rank");
    let mut peer_freezes = Turns::new(peer, "frozen rank");
    let service = Service::start(2).await?;
    for _ in 0..runs {
        kills.push(kill(&service).await?);
        peer_kills.turn().await?;
    }
    for _ in 0..runs {
        freezes.push(frozen(&service).await?);
        peer_freezes.turn().await?;
    }
    drop(service);
    for _ in 0..runs {
        losses.push(node_lost().await?);
    }
    let named = |hits: &[Hit]| hits.iter().map(|it| it.named).collect::<Vec<f64>>();
    let stepping = |hits: &[Hit]| hits.iter().map(|it| it.stepping).collect::<Vec<f64>>();
    let verdict = Row::of("kill -9 of a rank: verdict", "s", named(&kills), Some(0.3))?;
    let killed = Row::of("kill -9 of a rank: next step", "s", stepping(&kills), Some(1.5))?;
    let noticed = Row::of("frozen rank: named", "s", named(&freezes), Some(10.5))?;
    let replaced = Row::of("frozen rank: next step", "s", stepping(&freezes), None)?;
    let lease = LEASE.as_secs_f64() + 2.0;
    let rows = vec![
        peer_kills.beside(verdict, |run| run.noticed_s),
        peer_kills.beside(killed, |run| run.stepping_s),
        peer_freezes.beside(noticed, |run| run.noticed_s),
        peer_freezes.beside(replaced, |run| run.stepping_s),
        Row::of("node lost: next step", "s", stepping(&losses), Some(lease))?,
    ];
    print("recover", rows, json)
}

async fn start(service: &Service, timeout: &str) -> anyhow::Result<JobView> {
    let timeout = format!("timeouts.collective={timeout}");
    let job = service.submit(JOB, &[&LONG[..], &["gang.ranks=2", &timeout]].concat())?;
    let is_warm = |job: &JobView| WARM_UP <= job.summary.steps_done.0;
    wait_for_job(&service.client, job.summary.id, "the job is warm", DEADLINE, is_warm).await
}

/// Waits until the job does steps again, and checks that it is the right rank that was named and that no step was lost.
async fn until_repaired(
    service: &Service,
    id: JobId,
    at: DateTime<Utc>,
    (code, rank): (FailureCode, Option<Rank>),
) -> anyhow::Result<Hit> {
    let is_repaired = |job: &JobView| {
        job.attempts[0].groups.last().is_some_and(|it| it.first_step_at.is_some())
            && 1 < job.attempts[0].groups.len()
    };
    let job =
        wait_for_job(&service.client, id, "steps are done again", DEADLINE, is_repaired).await?;
    service.client.cancel(id).await?;
    let (groups, verdict) = (&job.attempts[0].groups, &job.failures[0]);
    ensure!(job.attempts.len() == 1 && groups.len() == 2, "{:#?}", job.attempts);
    ensure!((verdict.code, verdict.rank) == (code, rank), "{verdict:#?}");
    let over = |job: &JobView| job.summary.state.is_final();
    wait_for_job(&service.client, id, "the job is over", DEADLINE, over).await?;
    // It is blamed for what was done to it on purpose, again and again.
    for rank in &job.attempts[0].ranks {
        service.client.release_node(&rank.node_name).await?;
    }
    let since = |then: DateTime<Utc>| (then - at).as_seconds_f64();
    let stepping = groups[1].first_step_at.context("it does steps")?;
    Ok(Hit { named: since(groups[1].began_at), stepping: since(stepping) })
}

async fn kill(service: &Service) -> anyhow::Result<Hit> {
    let job = start(service, "20s").await?;
    let victim = job.attempts[0].ranks[1].pid.context("rank 1 runs")?;
    let at = lockstep_e2e::now();
    kill_now(victim)?;
    let expected = (FailureCode::PeerGone, Some(Rank(1)));
    until_repaired(service, job.summary.id, at, expected).await
}

async fn frozen(service: &Service) -> anyhow::Result<Hit> {
    let job = start(service, "10s").await?;
    let victim = job.attempts[0].ranks[1].pid.context("rank 1 runs")?;
    let at = lockstep_e2e::now();
    freeze(victim)?;
    let expected = (FailureCode::NotEntered, Some(Rank(1)));
    until_repaired(service, job.summary.id, at, expected).await
}

/// Two ranks on two nodes, and a third node with room.
async fn node_lost() -> anyhow::Result<Hit> {
    let mut service = Service::start(1).await?;
    service.add_agent("second", 1).await?;
    service.add_agent("third", 1).await?;
    let job = start(&service, "60s").await?;
    let name = job.attempts[0].ranks[1].node_name.clone();
    let index = ["first", "second", "third"].iter().position(|it| *it == name);
    let at = lockstep_e2e::now();
    service.kill_agent(index.context("a node of these")?)?;
    until_repaired(&service, job.summary.id, at, (FailureCode::NodeLost, None)).await
}
