//! Every time limit of a job, as a ratio of its one number `collective`.

use std::time::Duration;

/// Shortest time that is left for other ranks' deaths to become known before a symptom is believed.
const SNAPSHOT_FLOOR: Duration = Duration::from_millis(100);
/// The same for ranks on several nodes: the death and what it did to others are told by different agents, each over a
/// connection of its own. Only a symptom that nobody explains waits so long.
const SNAPSHOT_OF_NODES_FLOOR: Duration = Duration::from_secs(2);

/// The limits that the control plane needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    collective: Duration,
}

impl Timeouts {
    /// From the job's `timeouts.collective`.
    pub fn from_collective(collective: Duration) -> Self {
        Self { collective }
    }

    /// How long a symptom waits for its cause.
    pub fn snapshot(self) -> Duration {
        (self.collective / 100).max(SNAPSHOT_FLOOR)
    }

    /// How long a symptom waits for its cause when ranks are on several nodes.
    pub fn snapshot_of_nodes(self) -> Duration {
        self.snapshot().max(SNAPSHOT_OF_NODES_FLOOR)
    }

    /// How long it may take until it is known where every rank listens.
    pub fn formation(self) -> Duration {
        self.collective
    }

    /// How long ranks that were told to stop may take before they are killed: abort and a twelfth.
    pub fn stop_grace(self) -> Duration {
        self.collective / 6 + self.collective / 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_ratios_with_a_floor() {
        let minute = Timeouts::from_collective(Duration::from_secs(60));
        assert_eq!(minute.snapshot(), Duration::from_millis(600));
        assert_eq!(minute.stop_grace(), Duration::from_secs(15));
        assert_eq!(minute.formation(), Duration::from_secs(60));
        assert_eq!(minute.snapshot_of_nodes(), Duration::from_secs(2));
        let short = Timeouts::from_collective(Duration::from_secs(2));
        assert_eq!(short.snapshot(), Duration::from_millis(100));
        assert!(short.snapshot() < short.stop_grace());
    }
}
