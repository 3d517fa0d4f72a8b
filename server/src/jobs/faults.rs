//! The faults that a job asked for, and what became of them.

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptOutcome, AttemptView, FailureView, FaultSpec, FaultView, JobId, JobSpec,
};
use lockstep_core::faults::cause;
use sqlx::PgConnection;

use crate::progress::store::{self as progress, Injected};

/// In the order in which the job asked for them. Both lists: newest first.
pub(crate) async fn views(
    db: &mut PgConnection,
    id: JobId,
    spec: &JobSpec,
    (attempts, verdicts): (&[AttemptView], &[FailureView]),
) -> sqlx::Result<Vec<FaultView>> {
    if spec.chaos.is_empty() {
        return Ok(vec![]);
    }
    let injected = progress::faults(db, id).await?;
    let of_group = |verdict: &FailureView| -> Vec<(i32, FaultSpec, DateTime<Utc>)> {
        let of_group = injected.iter().filter(|it| {
            (Some(it.attempt_id), it.generation) == (verdict.attempt_id, verdict.generation)
        });
        let spec = |it: &Injected| spec.chaos.get(usize::try_from(it.index).ok()?).copied();
        of_group.filter_map(|it| Some((it.index, spec(it)?, it.injected_at))).collect()
    };
    let causes: Vec<Option<i32>> = verdicts
        .iter()
        .map(|verdict| cause((verdict.code, verdict.rank), &of_group(verdict)))
        .collect();
    let views = (0..).zip(&spec.chaos).map(|(index, fault)| {
        let found = injected.iter().find(|it| it.index == index);
        let verdict = causes.iter().zip(verdicts).find(|(cause, _)| **cause == Some(index));
        view(*fault, found, verdict.map(|(_, verdict)| verdict), attempts)
    });
    Ok(views.collect())
}

fn view(
    fault: FaultSpec,
    injected: Option<&Injected>,
    verdict: Option<&FailureView>,
    attempts: &[AttemptView],
) -> FaultView {
    let found = injected.filter(|_| verdict.is_some());
    let after = |at: DateTime<Utc>| found.map(|it| (at - it.injected_at).as_seconds_f64());
    let course = found.map(|it| course(attempts, it));
    let Course { named_at, repaired_at, steps_lost } = course.unwrap_or_default();
    FaultView {
        fault,
        injected_at: injected.map(|it| it.injected_at),
        verdict: verdict.map(|it| it.code),
        named_rank: verdict.and_then(|it| it.rank),
        detected_after: found.and_then(|it| it.detected_at).and_then(after),
        named_after: named_at.and_then(after),
        repaired_after: repaired_at.and_then(after),
        steps_lost,
    }
}

/// What came after a group in which something happened.
#[derive(Default)]
struct Course {
    named_at: Option<DateTime<Utc>>,
    repaired_at: Option<DateTime<Utc>>,
    steps_lost: Option<i64>,
}

/// `attempts`: newest first.
fn course(attempts: &[AttemptView], injected: &Injected) -> Course {
    let Some(place) = attempts.iter().position(|it| it.id == injected.attempt_id) else {
        return Course::default();
    };
    let attempt = &attempts[place];
    if let Some(next) = attempt.groups.iter().find(|it| injected.generation < it.generation) {
        let (named_at, repaired_at) = (Some(next.began_at), next.first_step_at);
        return Course { named_at, repaired_at, steps_lost: repaired_at.map(|_| 0) };
    }
    let next = place.checked_sub(1).map(|newer| &attempts[newer]);
    let repaired_at = next.and_then(|next| next.first_step_at);
    let lost = next.map(|next| (attempt.steps_done.0 - next.first_step.0).max(0));
    Course {
        named_at: attempt.ended_at.filter(|_| attempt.outcome != Some(AttemptOutcome::Succeeded)),
        repaired_at,
        steps_lost: lost.filter(|_| repaired_at.is_some()),
    }
}
