//! Parameters that a grain's loss does not depend on: named once, and held to if the job says that its graph is static.

use lockstep_api::{FailureCode, LogLevel, LogSource};
use lockstep_tensor::ParamId;
use serde_json::json;

use crate::failure::Failure;
use crate::train::Trainer;

/// Names that a line of log has room for.
const NAMES_CAP: usize = 20;

/// What the loss of the first grain did not depend on.
#[derive(Debug, Default)]
pub(crate) struct Unused {
    first: Option<Vec<ParamId>>,
    /// That grain is rank 0's, on all ranks.
    is_agreed: bool,
}

impl Unused {
    /// Of a group in which somebody may not know yet what the first grain used.
    pub(crate) fn agree_again(&mut self) {
        self.is_agreed = false;
    }
}

impl Trainer {
    /// After each grain.
    pub(crate) fn watch_unused(&mut self, step: u64) -> Result<(), Failure> {
        let now = self.ready.reducer.unused();
        let Some(first) = &self.unused.first else {
            let now = now.to_vec();
            self.name_unused(&now);
            self.unused.first = Some(now);
            return Ok(());
        };
        if !self.spec.ddp.static_graph || first.as_slice() == now {
            return Ok(());
        }
        self.refuse_unused(step, now, first).map_or(Ok(()), Err)
    }

    /// After an attempt's first step, whose first grain is rank 0's: from now on all ranks are held to that one.
    pub(crate) fn agree_on_unused(&mut self, step: u64) -> Result<(), Failure> {
        if !self.spec.ddp.static_graph || self.unused.is_agreed {
            return Ok(());
        }
        self.unused.is_agreed = true;
        let mut flags = vec![0.0; self.ready.engine.model.layout().params().len()];
        if self.is_reporter() {
            self.unused.first.iter().flatten().for_each(|id| flags[id.0] = 1.0);
        }
        let agreed = self.ready.reducer.all_reduce_f64(&mut flags);
        agreed.map_err(|error| Failure::of_group(&error))?;
        let ids = flags.iter().enumerate().filter(|(_, flag)| **flag != 0.0);
        let first: Vec<ParamId> = ids.map(|(id, _)| ParamId(id)).collect();
        let own = self.unused.first.replace(first);
        let differs = own.as_ref().zip(self.unused.first.as_ref());
        let failure = differs.and_then(|(own, first)| self.refuse_unused(step, own, first));
        failure.map_or(Ok(()), Err)
    }

    /// What is wrong with a grain, if it does not use the parameters that the first one did.
    fn refuse_unused(&self, step: u64, now: &[ParamId], first: &[ParamId]) -> Option<Failure> {
        let differs = |id: &&ParamId| first.contains(id) != now.contains(id);
        // In the arena, what is used first comes last.
        let id = now.iter().chain(first).filter(differs).max()?;
        let (name, rank) = (self.name(*id), self.rank);
        let said = |depends: bool| if depends { "depends" } else { "does not depend" };
        let (was, is) = (said(!first.contains(id)), said(!now.contains(id)));
        let message = format!(
            "step {step}: the loss of a micro batch of rank {rank} {is} on `{name}`, that of the first one {was} on it, \
             and ddp.static_graph is true"
        );
        let evidence = json!({ "step": step, "parameter": name });
        let failure = Failure::new(FailureCode::GuestShape, message);
        Some(failure.of_rank(rank).with_evidence(evidence))
    }

    fn name_unused(&self, unused: &[ParamId]) {
        if unused.is_empty() {
            return;
        }
        let names: Vec<String> =
            unused.iter().rev().take(NAMES_CAP).map(|id| format!("`{}`", self.name(*id))).collect();
        let more = match unused.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (names, rank) = (names.join(", "), self.rank);
        let text = format!(
            "rank {rank}: the loss of its first micro batch does not depend on {names}{more}: their gradient is 0"
        );
        self.link.log(LogSource::Rank, LogLevel::Warn, &text);
    }

    fn name(&self, id: ParamId) -> &str {
        let param = self.ready.engine.model.layout().param(id);
        param.map_or("", |param| param.name.as_str())
    }
}
