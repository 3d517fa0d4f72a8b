//! What a rank says before it is silent for long: from the moment at which its group has formed until its first step is
//! done (guests are compiled, kernels planned), and in a checkpoint. Others then do not take it for hung at their deadline.
//!
//! An evaluation needs none: its collectives lie no further apart than those of training.

use crate::failure::Failure;
use crate::train::Trainer;

impl Trainer {
    /// The rank will be busy, for [`lockstep_api::Timeouts::pause`] at most.
    ///
    /// # Errors
    /// The group is dead.
    pub(crate) fn begin_pause(&mut self) -> Result<(), Failure> {
        self.standing.is_pausing = true;
        let longest = self.spec.timeouts.effective().pause();
        let said = self.ready.reducer.announce_pause(longest);
        said.map_err(|error| Failure::of_group(&error))
    }

    /// It is back, and will be missed as usual. Without a pause nothing happens.
    ///
    /// # Errors
    /// The group is dead.
    pub(crate) fn end_pause(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.standing.is_pausing) {
            return Ok(());
        }
        self.ready.reducer.end_pause().map_err(|error| Failure::of_group(&error))
    }
}
