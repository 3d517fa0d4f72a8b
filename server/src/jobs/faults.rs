//! The faults that a job asked for, and what became of them.

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptOutcome, AttemptView, FailureCode, FailureView, FaultKind, FaultSpec, FaultTarget,
    FaultView, JobId, JobSpec,
};
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
    let all: Vec<(FaultSpec, Injected)> = injected
        .iter()
        .filter_map(|it| Some((*spec.chaos.get(usize::try_from(it.index).ok()?)?, *it)))
        .collect();
    let views = (0..).zip(&spec.chaos).map(|(index, fault)| {
        let found = all.iter().find(|(_, it)| it.index == index);
        let verdict =
            found.and_then(|found| verdicts.iter().find(|it| cause(it, &all) == Some(found)));
        view(*fault, found.map(|(_, it)| it), verdict, attempts)
    });
    Ok(views.collect())
}

/// Of the faults of a group the one that a verdict on it is of: one that may come to such an end, of the rank that is named if
/// there is one, and of several the last.
fn cause<'a>(
    verdict: &FailureView,
    faults: &'a [(FaultSpec, Injected)],
) -> Option<&'a (FaultSpec, Injected)> {
    let is_of_group = |(_, it): &&(FaultSpec, Injected)| {
        (Some(it.attempt_id), it.generation) == (verdict.attempt_id, verdict.generation)
    };
    let candidates =
        faults.iter().filter(is_of_group).filter(|(it, _)| may_come_to(it, verdict.code));
    candidates.max_by_key(|(fault, it)| {
        let is_named = fault.target == FaultTarget::Rank && verdict.rank == Some(fault.rank);
        (is_named, it.injected_at)
    })
}

/// Whether a fault may end in such a verdict.
fn may_come_to(fault: &FaultSpec, code: FailureCode) -> bool {
    match (fault.target, fault.kind) {
        (FaultTarget::Agent, _) => code == FailureCode::NodeLost,
        (FaultTarget::Rank, FaultKind::Kill) => code == FailureCode::PeerGone,
        (FaultTarget::Rank, FaultKind::Corrupt) => {
            matches!(code, FailureCode::Diverged | FailureCode::NonFinite)
        }
        (FaultTarget::Rank, FaultKind::Freeze | FaultKind::Slow | FaultKind::Partition) => {
            matches!(code, FailureCode::NotEntered | FailureCode::AbortHung)
        }
        (FaultTarget::Link, FaultKind::Corrupt) => code == FailureCode::CommError,
        (FaultTarget::Link, _) => {
            matches!(code, FailureCode::LinkOrDeviceStall | FailureCode::NotEntered)
        }
    }
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

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use lockstep_api::{AttemptId, Blame, FailureId, Generation, Phase, Rank, Step};
    use uuid::Uuid;

    use super::*;

    fn verdict(code: FailureCode, rank: Option<i32>, generation: i64) -> FailureView {
        FailureView {
            id: FailureId(Uuid::nil()),
            attempt_id: Some(AttemptId(Uuid::nil())),
            generation: Generation(generation),
            code,
            blame: Blame::Infrastructure,
            rank: rank.map(Rank),
            node_id: None,
            signal: None,
            exit_code: None,
            step: None,
            phase: None,
            message: String::new(),
            evidence: serde_json::Value::Null,
            at: DateTime::UNIX_EPOCH,
        }
    }

    /// Faults of generation 1, each a second after the one before.
    fn faults(kinds: &[(FaultKind, FaultTarget, i32)]) -> Vec<(FaultSpec, Injected)> {
        let one = |(index, (kind, target, rank)): (i32, &(FaultKind, FaultTarget, i32))| {
            let fault = FaultSpec {
                kind: *kind,
                target: *target,
                rank: Rank(*rank),
                step: Step(0),
                phase: Phase::Forward,
                milliseconds: 100,
            };
            let injected = Injected {
                index,
                attempt_id: AttemptId(Uuid::nil()),
                generation: Generation(1),
                injected_at: DateTime::UNIX_EPOCH + TimeDelta::seconds(index.into()),
                detected_at: None,
            };
            (fault, injected)
        };
        (0..).zip(kinds).map(one).collect()
    }

    #[test]
    fn a_verdict_is_of_the_fault_that_may_come_to_it() {
        use FaultKind::{Freeze, Kill, Partition, Slow};
        use FaultTarget::{Agent, Link};
        let of = |verdict: &FailureView, kinds: &[(FaultKind, FaultTarget, i32)]| {
            cause(verdict, &faults(kinds)).map(|(_, it)| it.index)
        };
        let on_rank = FaultTarget::Rank;
        let gone = verdict(FailureCode::PeerGone, Some(1), 1);
        assert_eq!(of(&gone, &[(Slow, on_rank, 2), (Kill, on_rank, 1)]), Some(1));
        assert_eq!(of(&gone, &[(Kill, on_rank, 1), (Slow, on_rank, 1)]), Some(0));
        assert_eq!(of(&gone, &[(Kill, on_rank, 1), (Kill, on_rank, 2)]), Some(0), "of that rank");
        assert_eq!(of(&gone, &[(Slow, on_rank, 1)]), None);
        let silent = verdict(FailureCode::NotEntered, Some(0), 1);
        assert_eq!(of(&silent, &[(Freeze, on_rank, 0), (Slow, on_rank, 2)]), Some(0));
        let stall = verdict(FailureCode::LinkOrDeviceStall, None, 1);
        assert_eq!(of(&stall, &[(Slow, Link, 0), (Partition, Link, 0)]), Some(1));
        let lost = verdict(FailureCode::NodeLost, None, 1);
        assert_eq!(of(&lost, &[(Partition, Agent, 0), (Kill, on_rank, 0)]), Some(0));
        let later = verdict(FailureCode::PeerGone, Some(1), 2);
        assert_eq!(of(&later, &[(Kill, on_rank, 1)]), None, "of another group");
    }
}
