//! How ranks train together.

use super::Check;
use crate::{DigestCheck, Hook, JobSpec, OptimizerSpec, Precision, Reduction, Shard};

impl Check {
    pub(super) fn ddp(&mut self, spec: &JobSpec) {
        let ddp = &spec.ddp;
        self.range("ddp.bucket_mib", ddp.bucket_mib, 1, 1024);
        self.range("ddp.first_bucket_mib", ddp.first_bucket_mib, 1, 1024);
        self.range("ddp.groups", ddp.groups, 1, 8);
        self.range("ddp.sync_every", ddp.sync_every, 1, 10_000);
        self.range("ddp.sync_from", ddp.sync_from, 0, super::MAX_STEPS);
        self.range("ddp.compare_every", ddp.compare_every, 0, 1_000_000);
        self.range("ddp.power_sgd.rank", ddp.power_sgd.rank, 1, 128);
        self.range("ddp.power_sgd.start_step", ddp.power_sgd.start_step, 0, super::MAX_STEPS);
        let rate = ddp.power_sgd.min_compression_rate;
        self.that((1.0..=1000.0).contains(&rate), "ddp.power_sgd.min_compression_rate", || {
            format!("expected 1 to 1000, got {rate}")
        });
        let is_tree = ddp.reduction == Reduction::FixedTree;
        let is_local = 1 < ddp.sync_every;
        if ddp.hook != Hook::Mean {
            self.excluded(is_tree, "ddp.hook", "mean", "ddp.reduction = \"fixed-tree\"");
            self.excluded(ddp.shard != Shard::None, "ddp.hook", "mean", "ddp.shard = \"zero1\"");
            self.excluded(is_local, "ddp.hook", "mean", "ddp.sync_every above 1");
        }
        if ddp.shard == Shard::Zero1 {
            let is_lamb = matches!(spec.train.optimizer, OptimizerSpec::Lamb(_));
            self.excluded(is_lamb, "ddp.shard", "none", "the optimizer `lamb`");
            self.excluded(is_local, "ddp.shard", "none", "ddp.sync_every above 1");
        }
        if ddp.hook == Hook::PowerSgd {
            // What it keeps of earlier gradients would have another scale.
            let is_scaled = spec.train.precision == Precision::F16;
            self.excluded(is_scaled, "ddp.hook", "another one", "train.precision = \"f16\"");
        }
        if is_local {
            let has_mean = spec.train.ema.is_some();
            self.excluded(has_mean, "ddp.sync_every", "1", "train.ema");
            self.excluded(is_tree, "ddp.sync_every", "1", "ddp.reduction = \"fixed-tree\"");
        }
        if 1 < ddp.groups {
            self.excluded(
                ddp.hook != Hook::Mean,
                "ddp.groups",
                "1",
                "another ddp.hook than \"mean\"",
            );
            self.excluded(ddp.shard != Shard::None, "ddp.groups", "1", "ddp.shard = \"zero1\"");
        }
        if ddp.sync_batch_norm {
            self.excluded(is_local, "ddp.sync_batch_norm", "false", "ddp.sync_every above 1");
            self.excluded(
                is_tree,
                "ddp.sync_batch_norm",
                "false",
                "ddp.reduction = \"fixed-tree\"",
            );
        }
        if ddp.digest == DigestCheck::Off {
            let compares = ddp.compare_every != 0;
            self.excluded(compares, "ddp.compare_every", "0", "ddp.digest = \"off\"");
        }
    }

    /// Two settings that cannot both be.
    fn excluded(&mut self, is_so: bool, field: &str, expected: &str, with: &str) {
        self.that(!is_so, field, || format!("expected {expected} with {with}"));
    }
}
