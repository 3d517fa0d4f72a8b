//! Which of the faults that a job asked for a verdict is of.

use chrono::{DateTime, Utc};
use lockstep_api::{FailureCode, FaultKind, FaultSpec, FaultTarget, Rank};

/// Of the faults of a group, each with its place in the job and the time at which it happened, the place of the one that a verdict
/// on that group is of: one that may come to such an end, of the rank that is named if there is one, and of several the last.
pub fn cause(
    (code, rank): (FailureCode, Option<Rank>),
    faults: &[(i32, FaultSpec, DateTime<Utc>)],
) -> Option<i32> {
    let candidates = faults.iter().filter(|(_, fault, _)| may_come_to(fault, code));
    let last = candidates.max_by_key(|(_, fault, at)| {
        let is_named = fault.target == FaultTarget::Rank && rank == Some(fault.rank);
        (is_named, *at)
    });
    last.map(|(index, ..)| *index)
}

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

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use lockstep_api::{Phase, Step};

    use super::*;

    #[test]
    fn a_verdict_is_of_the_fault_that_may_come_to_it() {
        use FaultKind::{Freeze, Kill, Partition, Slow};
        use FaultTarget::{Agent, Link};
        let on_rank = FaultTarget::Rank;
        // Each a second after the one before.
        let of = |code, rank: Option<i32>, kinds: &[(FaultKind, FaultTarget, i32)]| {
            let fault = |(index, (kind, target, rank)): (i32, &(FaultKind, FaultTarget, i32))| {
                let (step, phase) = (Step(0), Phase::Forward);
                let rank = Rank(*rank);
                let fault = FaultSpec {
                    kind: *kind,
                    target: *target,
                    rank,
                    step,
                    phase,
                    milliseconds: 100,
                };
                (index, fault, DateTime::UNIX_EPOCH + TimeDelta::seconds(index.into()))
            };
            let faults: Vec<_> = (0..).zip(kinds).map(fault).collect();
            cause((code, rank.map(Rank)), &faults)
        };
        let gone = |kinds: &[_]| of(FailureCode::PeerGone, Some(1), kinds);
        assert_eq!(gone(&[(Slow, on_rank, 2), (Kill, on_rank, 1)]), Some(1));
        assert_eq!(gone(&[(Kill, on_rank, 1), (Slow, on_rank, 1)]), Some(0));
        assert_eq!(gone(&[(Kill, on_rank, 1), (Kill, on_rank, 2)]), Some(0), "of that rank");
        assert_eq!(gone(&[(Slow, on_rank, 1)]), None);
        let silent = [(Freeze, on_rank, 0), (Slow, on_rank, 2)];
        assert_eq!(of(FailureCode::NotEntered, Some(0), &silent), Some(0));
        let links = [(Slow, Link, 0), (Partition, Link, 0)];
        assert_eq!(of(FailureCode::LinkOrDeviceStall, None, &links), Some(1));
        let agents = [(Partition, Agent, 0), (Kill, on_rank, 0)];
        assert_eq!(of(FailureCode::NodeLost, None, &agents), Some(0));
    }
}
