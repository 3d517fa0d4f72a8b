//! What can be said about the faults that a job asks for.

use super::{Check, MAX_STEPS};
use crate::{FaultKind, FaultSpec, FaultTarget, JobSpec, MAX_FAULTS, Phase};

impl Check {
    pub(super) fn chaos(&mut self, spec: &JobSpec) {
        let count = spec.chaos.len();
        self.that(count <= MAX_FAULTS, "chaos", || {
            format!("expected at most {MAX_FAULTS} faults, got {count}")
        });
        for (index, fault) in spec.chaos.iter().enumerate() {
            let field = |name: &str| format!("chaos[{index}].{name}");
            let (rank, ranks) = (i64::from(fault.rank.0), i64::from(spec.gang.ranks.max()));
            self.that((0..ranks).contains(&rank), &field("rank"), || {
                format!("expected 0 to {}, got {rank}", ranks - 1)
            });
            let step = fault.step.0;
            self.that(
                u64::try_from(step).is_ok_and(|step| step < MAX_STEPS),
                &field("step"),
                || format!("expected 0 to {}, got {step}", MAX_STEPS - 1),
            );
            self.range(&field("milliseconds"), fault.milliseconds, 1, 600_000);
            let is_of_a_step = !matches!(
                fault.phase,
                Phase::Starting | Phase::Forming | Phase::Recovering | Phase::Done
            );
            self.that(is_of_a_step, &field("phase"), || {
                format!("expected a part of a step, got {}", fault.phase)
            });
            let targets = possible_targets(fault.kind);
            self.that(targets.contains(&fault.target), &field("target"), || {
                let targets: Vec<&str> = targets.iter().map(|target| target.as_str()).collect();
                let (targets, FaultSpec { kind, target, .. }) = (targets.join(" or "), fault);
                format!("expected {targets} for {kind}, got {target}")
            });
            if (fault.kind, fault.target) == (FaultKind::Corrupt, FaultTarget::Rank) {
                self.that(0 < spec.ddp.compare_every, "ddp.compare_every", || {
                    "expected above 0 where weights are corrupted, else nobody notices".to_owned()
                });
            }
        }
    }
}

/// To whom a fault of this kind can happen.
fn possible_targets(kind: FaultKind) -> &'static [FaultTarget] {
    match kind {
        FaultKind::Kill | FaultKind::Freeze => &[FaultTarget::Rank, FaultTarget::Agent],
        FaultKind::Slow | FaultKind::Corrupt => &[FaultTarget::Rank, FaultTarget::Link],
        FaultKind::Partition => &[FaultTarget::Link, FaultTarget::Agent],
    }
}
