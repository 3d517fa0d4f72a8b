//! Says to everybody that this rank will be silent for a while, and that it is back.

use std::time::Duration;

use lockstep_shm::monotonic_ns;

use super::CpuGroup;
use crate::pause::LONGEST_PAUSE;

impl CpuGroup {
    /// At most for [`LONGEST_PAUSE`] timeouts.
    pub(super) fn say_pause(&mut self, longest: Duration) {
        let longest = longest.min(self.timeout * LONGEST_PAUSE);
        self.control.pause(self.rank).begin(longest);
        if let Some(record) = &self.record {
            let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
            record.set_paused_until(monotonic_ns().saturating_add(longest));
        }
        if let Some(mesh) = &mut self.mesh {
            mesh.say_pause(longest);
        }
    }

    pub(super) fn say_pause_is_over(&mut self) {
        self.control.pause(self.rank).end();
        if let Some(record) = &self.record {
            record.set_paused_until(0);
        }
        if let Some(mesh) = &mut self.mesh {
            mesh.say_pause(Duration::ZERO);
        }
    }
}
