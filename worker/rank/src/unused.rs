//! Parameters that a grain's loss does not depend on: named once, and held to if the job says that its graph is static.

use lockstep_api::{FailureCode, LogLevel, LogSource};
use lockstep_tensor::ParamId;
use serde_json::json;

use crate::failure::Failure;
use crate::train::Trainer;

/// Names that a line of log has room for.
const NAMES_CAP: usize = 20;

impl Trainer {
    /// After each grain.
    pub(crate) fn watch_unused(&mut self, step: u64, grain: usize) -> Result<(), Failure> {
        let now = self.ready.reducer.unused();
        let Some(first) = &self.unused else {
            let now = now.to_vec();
            self.name_unused(&now);
            self.unused = Some(now);
            return Ok(());
        };
        if !self.spec.ddp.static_graph || first.as_slice() == now {
            return Ok(());
        }
        let differs = |id: &&ParamId| first.contains(id) != now.contains(id);
        // In the arena, what is used first comes last.
        let Some(id) = now.iter().chain(first).filter(differs).max() else { return Ok(()) };
        let name = self.name(*id);
        let said = |depends: bool| if depends { "depends" } else { "does not depend" };
        let (was, is) = (said(!first.contains(id)), said(!now.contains(id)));
        let message = format!(
            "step {step}, micro batch {grain}: the loss {is} on `{name}`, that of rank {}'s first micro batch {was} on it, \
             and ddp.static_graph is true",
            self.rank
        );
        let evidence = json!({ "step": step, "grain": grain, "parameter": name });
        Err(Failure::new(FailureCode::GuestShape, message)
            .of_rank(self.rank)
            .with_evidence(evidence))
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
