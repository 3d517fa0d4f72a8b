//! How ranks train together.

use serde::Serialize;

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
        self.together(spec);
        if 1 < ddp.sync_every {
            // One that has nothing to do would count as much in the mean as those that have learnt.
            let most = spec.train.global_batch.div_ceil(spec.train.micro_batch.max(1));
            let ranks = spec.gang.ranks.max();
            self.that(ranks <= most, "gang.ranks", || {
                format!("expected at most {most} with ddp.sync_every above 1, the micro batches of a step, got {ranks}")
            });
        }
    }

    /// Settings that cannot both be.
    fn together(&mut self, spec: &JobSpec) {
        let ddp = &spec.ddp;
        let (is_tree, is_local) = (ddp.reduction == Reduction::FixedTree, 1 < ddp.sync_every);
        let is_sharded = ddp.shard == Shard::Zero1;
        let (tree, local, zero1) =
            ("ddp.reduction = \"fixed-tree\"", "ddp.sync_every above 1", "ddp.shard = \"zero1\"");
        if ddp.hook != Hook::Mean {
            let hook = ("ddp.hook", "\"mean\"", &ddp.hook);
            self.excluded(is_tree, hook, tree);
            self.excluded(is_sharded, hook, zero1);
            self.excluded(is_local, hook, local);
        }
        if is_sharded {
            let shard = ("ddp.shard", "\"none\"", &ddp.shard);
            let is_lamb = matches!(spec.train.optimizer, OptimizerSpec::Lamb(_));
            self.excluded(is_lamb, shard, "train.optimizer.name = \"lamb\"");
            self.excluded(is_local, shard, local);
        }
        if ddp.hook == Hook::PowerSgd {
            // What it keeps of earlier gradients would have another scale.
            let is_scaled = spec.train.precision == Precision::F16;
            let hook = ("ddp.hook", "\"mean\", \"bf16\" or \"f16\"", &ddp.hook);
            self.excluded(is_scaled, hook, "train.precision = \"f16\"");
        }
        if is_local {
            let every = ("ddp.sync_every", "1", &ddp.sync_every);
            self.excluded(spec.train.ema.is_some(), every, "train.ema");
            self.excluded(is_tree, every, tree);
        }
        if 1 < ddp.groups {
            let groups = ("ddp.groups", "1", &ddp.groups);
            self.excluded(ddp.hook != Hook::Mean, groups, "a ddp.hook other than \"mean\"");
            self.excluded(is_sharded, groups, zero1);
        }
        if ddp.sync_batch_norm {
            let norm = ("ddp.sync_batch_norm", "false", &ddp.sync_batch_norm);
            self.excluded(is_local, norm, local);
            self.excluded(is_tree, norm, tree);
        }
        if ddp.digest == DigestCheck::Off {
            let every = ("ddp.compare_every", "0", &ddp.compare_every);
            self.excluded(ddp.compare_every != 0, every, "ddp.digest = \"off\"");
        }
    }

    /// A field, what it may be, and what it is, beside another setting.
    fn excluded(
        &mut self,
        is_so: bool,
        (field, expected, got): (&str, &str, &impl Serialize),
        with: &str,
    ) {
        self.that(!is_so, field, || {
            // Numbers, booleans and names of variants only.
            let got = serde_json::to_string(got).unwrap_or_default();
            format!("expected {expected} with {with}, got {got}")
        });
    }
}
