//! One line a job's log has of every attempt: how its ranks train together. And a warning for what has no effect.

use lockstep_api::{DigestCheck, Hook, LogLevel, LogSource, Reduction, Shard, Transport};

use crate::train::Trainer;

impl Trainer {
    /// Rank 0 speaks for all.
    pub(crate) fn describe(&self) {
        if !self.is_reporter() {
            return;
        }
        self.link.log(LogSource::Rank, LogLevel::Info, &self.how());
        for warning in self.without_effect() {
            self.link.log(LogSource::Rank, LogLevel::Warn, &warning);
        }
    }

    /// "2 ranks on 1 node, shared memory; 8 micro batches a step; 1 bucket of 0.10 MiB in all; …".
    fn how(&self) -> String {
        let (reducer, ddp) = (&self.ready.reducer, &self.spec.ddp);
        let buckets = &reducer.plan().buckets;
        let nodes = reducer.plan().nodes.len();
        let grains = self.ready.schedule.max_grains();
        let count = |number: usize, what: &str, many: &str| {
            if number == 1 { format!("1 {what}") } else { format!("{number} {many}") }
        };
        let carried = match (reducer.world_size(), nodes, ddp.encrypt) {
            (1, ..) => String::new(),
            (_, 1, _) => ", shared memory".to_owned(),
            (world, nodes, encrypted) => {
                let inside = if nodes < world { "shared memory and TCP" } else { "TCP" };
                let encrypted = if encrypted { ", encrypted" } else { "" };
                format!(", {inside}{encrypted}")
            }
        };
        let places = match ddp.transport {
            Transport::Tcp => String::new(),
            _ => format!(" on {}", count(nodes, "node", "nodes")),
        };
        let floats: usize = buckets.iter().map(|bucket| bucket.range.len()).sum();
        let mib = (floats * size_of::<f32>()) as f64 / f64::from(1 << 20);
        let mut parts = vec![
            format!("{}{places}{carried}", count(reducer.world_size(), "rank", "ranks")),
            format!("{} a step", count(grains, "micro batch", "micro batches")),
            format!("{} of {mib:.2} MiB in all", count(buckets.len(), "bucket", "buckets")),
            match ddp.reduction {
                Reduction::Fast => "the fast reduction".to_owned(),
                Reduction::FixedTree => "the fixed-tree reduction".to_owned(),
            },
        ];
        match ddp.hook {
            Hook::Mean => {}
            Hook::Bf16 => parts.push("as bf16".to_owned()),
            Hook::F16 => parts.push("as f16".to_owned()),
            Hook::PowerSgd => parts.push(format!("PowerSGD of rank {}", ddp.power_sgd.rank)),
        }
        if ddp.shard == Shard::Zero1 {
            parts.push("the optimizer's state in parts".to_owned());
        }
        if 1 < ddp.groups {
            parts.push(format!("{} groups in turn", ddp.groups));
        }
        if 1 < ddp.sync_every {
            parts.push(format!("weights averaged every {} steps", ddp.sync_every));
        }
        if reducer.batch_peers().is_some() {
            parts.push("batch norms over all ranks".to_owned());
        }
        if ddp.digest == DigestCheck::Off {
            parts.push("nothing compared".to_owned());
        }
        parts.join("; ")
    }

    /// Settings that this job will not notice.
    fn without_effect(&self) -> Vec<String> {
        let (ddp, steps) = (&self.spec.ddp, self.ready.schedule.steps_total());
        let (world, grains) = (self.ready.reducer.world_size(), self.ready.schedule.max_grains());
        let has_norms = !self.ready.engine.buffers.is_empty();
        let mut found = Vec::new();
        if grains < world {
            let idle = world - grains;
            found.push(format!(
                "a step has no more than {grains} micro batches for {world} ranks: {idle} always idle"
            ));
        }
        if ddp.hook == Hook::PowerSgd && steps <= ddp.power_sgd.start_step {
            let start = ddp.power_sgd.start_step;
            found.push(format!("ddp.power_sgd.start_step is {start}, the job has {steps} steps: nothing is compressed"));
        }
        if 1 < ddp.sync_every && steps <= ddp.sync_from {
            let from = ddp.sync_from;
            found.push(format!(
                "ddp.sync_from is {from}, the job has {steps} steps: ddp.sync_every has no effect"
            ));
        }
        if ddp.sync_batch_norm && !has_norms {
            found
                .push("ddp.sync_batch_norm has no effect: the model has no batch norms".to_owned());
        }
        let (groups, buckets) = (ddp.groups as usize, self.ready.reducer.plan().buckets.len());
        if buckets < groups {
            found.push(format!(
                "ddp.groups is {groups}: more than there are buckets to go through them ({buckets})"
            ));
        }
        found
    }
}
