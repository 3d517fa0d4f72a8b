//! How many ranks, and on what.

use super::Check;
use crate::{JobSpec, RankCount, RankRange};

/// Most ranks of a job.
const MAX_RANKS: u64 = 64;

impl Check {
    pub(super) fn gang(&mut self, spec: &JobSpec) {
        match spec.gang.ranks {
            RankCount::Fixed(ranks) => {
                self.range("gang.ranks", ranks, 1, MAX_RANKS);
            }
            RankCount::Elastic(RankRange { min, max }) => {
                self.range("gang.ranks.max", max, 1, MAX_RANKS);
                self.that((1..=max.max(1)).contains(&min), "gang.ranks.min", || {
                    format!("expected 1 to gang.ranks.max, which is {max}, got {min}")
                });
                self.elastic(spec);
            }
        }
        self.range("gang.slot.cores", spec.gang.slot.cores, 1, 1024);
        self.range("gang.slot.memory_mib", spec.gang.slot.memory_mib, 64, 1 << 20);
    }

    /// What a gang that changes its size must not have: state that is not the same on all ranks, or a meaning that depends
    /// on how many there are.
    fn elastic(&mut self, spec: &JobSpec) {
        let (ddp, ranks) = (&spec.ddp, spec.gang.ranks);
        self.that(ddp.has_copies(), "gang.ranks", || {
            format!(
                "expected a number with ddp.shard = \"zero1\", ddp.sync_every above 1 or a ddp.hook that keeps state, got {ranks}"
            )
        });
        self.that(!ddp.sync_batch_norm, "gang.ranks", || {
            format!("expected a number with ddp.sync_batch_norm, got {ranks}")
        });
    }
}
