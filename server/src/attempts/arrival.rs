//! The arrival map as people see it, and the one line in the job's log when somebody is late.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::{
    Arrival, ArrivalMap, AttemptId, CollectiveUnderWay, JobEventKind, Lane, LogLevel, LogSource,
    RankArrival, ReportedLine, RunningAttempt,
};
use lockstep_core::arrival::{Seen, UnderWay, heard_at, sentence, standing, stragglers, under_way};

use crate::app::App;
use crate::attempts::store::arrival::{self as store, Claim, Heard, Whose};
use crate::jobs::store::lifecycle;
use crate::problem::Problem;
use crate::progress::store as progress;

/// Less than any job's soft limit: what waits no longer than this is not worth a look.
const LEAST_SOFT_MS: i64 = 25;

/// Puts the map together.
pub(crate) fn map(of: Option<Whose>, heard: Vec<Heard>, now: DateTime<Utc>) -> ArrivalMap {
    let seen: Vec<Seen> = heard.iter().map(|it| it.seen.clone()).collect();
    let (collective, as_of) = (under_way(&seen), heard_at(&seen, now));
    let summary = match of {
        Some(_) => sentence(&seen, now),
        None => "the job has no attempt yet".to_owned(),
    };
    ArrivalMap {
        attempt_id: of.map(|it| it.attempt_id),
        state: of.map(|it| it.state),
        generation: of.map(|it| it.generation),
        ranks: heard.into_iter().map(|it| rank(it, collective.as_ref(), now)).collect(),
        collective: collective.map(|UnderWay { lane, sequence, what, since }| CollectiveUnderWay {
            lane,
            sequence,
            what,
            waited_ms: millis(as_of - since),
        }),
        summary,
        at: now,
    }
}

fn rank(heard: Heard, collective: Option<&UnderWay>, now: DateTime<Utc>) -> RankArrival {
    let standing = standing(&heard.seen, collective);
    let Heard { node_id, pid, seen } = heard;
    let Seen {
        rank,
        node_name,
        phase,
        step,
        entered,
        paused_until,
        is_stopped,
        seen_at,
        has_ended: _,
    } = seen;
    let is_over = standing == Arrival::Ended;
    let lane = collective.map_or(Lane(0), |it| it.lane);
    let entered = entered.into_iter().find(|it| it.lane == lane);
    let inside = entered.as_ref().filter(|it| !is_over && it.is_inside());
    let pause_left =
        paused_until.map(|until| millis(until - now)).filter(|left| 0 < *left && !is_over);
    RankArrival {
        rank,
        node_id,
        node_name,
        pid,
        phase: phase.map(|(phase, _)| phase),
        phase_ms: (phase.and_then(|(_, since)| since))
            .map(|since| millis(seen_at.unwrap_or(now) - since)),
        step,
        standing,
        waited_ms: inside.map(|it| millis(seen_at.unwrap_or(now) - it.at)),
        entered: entered.as_ref().map(|it| it.sequence),
        left: entered.as_ref().map(|it| it.left),
        what: entered.map(|it| it.what),
        pause_left_ms: pause_left,
        is_stopped: is_stopped && !is_over,
        seen_ms: seen_at.map(|at| millis(now - at)),
    }
}

fn millis(time: TimeDelta) -> i64 {
    time.num_milliseconds().max(0)
}

/// The attempts of a heartbeat in which a rank waits.
pub(crate) fn waiting(running: &[RunningAttempt]) -> Vec<AttemptId> {
    let waits = |attempt: &&RunningAttempt| {
        let inside = attempt.ranks.iter().flat_map(|rank| rank.lanes()).map(|(_, it)| it);
        inside.filter(|it| it.is_inside()).any(|it| LEAST_SOFT_MS <= it.entered_ms)
    };
    running.iter().filter(waits).map(|attempt| attempt.fence.attempt_id).collect()
}

/// Says in the job's log who is late in the collective under way, once for each collective, from the soft limit on.
pub(crate) async fn tell_of_stragglers(app: &App, attempt: AttemptId) -> Result<(), Problem> {
    let now = app.clock.now();
    let mut tx = app.db.system().await?;
    let Some(Whose { attempt_id, project_id, job_id, .. }) = store::whose(&mut tx, attempt).await?
    else {
        return Ok(());
    };
    let Some(timeouts) = lifecycle::timeouts(&mut tx, job_id).await? else { return Ok(()) };
    let soft = TimeDelta::from_std(timeouts.soft()).map_err(Problem::internal)?;
    let seen: Vec<Seen> =
        store::heard(&mut tx, attempt).await?.into_iter().map(|it| it.seen).collect();
    let Some((collective, missing)) = stragglers(&seen, soft, now) else { return Ok(()) };
    // Lines of a log are numbered under the job's lock.
    lifecycle::lock(&mut tx, &[job_id]).await?;
    if store::claim_warning(&mut tx, attempt_id, (collective.lane, collective.sequence)).await?
        == Claim::Told
    {
        return Ok(());
    }
    let line = ReportedLine {
        rank: missing.first().map(|it| it.rank),
        source: LogSource::Server,
        level: LogLevel::Warn,
        at: now,
        text: format!("straggler: {}", sentence(&seen, now)),
    };
    progress::insert_lines(&mut tx, project_id, job_id, attempt_id, &[line]).await?;
    progress::append_events(&mut tx, project_id, job_id, &[JobEventKind::Log], now).await?;
    tx.commit().await?;
    app.wakeup.job_event(job_id);
    Ok(())
}
