//! The one way to learn the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// Tells the time: the machine's, or in tests one that is set by hand.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    set_by_hand: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands still until it is advanced. Clones share the hand.
    pub fn manual(start: DateTime<Utc>) -> Self {
        Self { set_by_hand: Some(Arc::new(AtomicI64::new(start.timestamp_micros()))) }
    }

    /// The time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everyone else is given")]
    pub fn now(&self) -> DateTime<Utc> {
        match &self.set_by_hand {
            None => Utc::now(),
            Some(hand) => DateTime::from_timestamp_micros(hand.load(Ordering::SeqCst))
                .unwrap_or(DateTime::UNIX_EPOCH),
        }
    }

    /// Milliseconds since the Unix epoch, for ids.
    pub fn unix_ms(&self) -> u64 {
        u64::try_from(self.now().timestamp_millis()).unwrap_or(0)
    }

    /// Moves the hand of a manual clock.
    ///
    /// # Panics
    /// On the system's clock.
    pub fn advance(&self, by: Duration) {
        let hand = self.set_by_hand.as_ref().expect("only a manual clock can be advanced");
        let by = TimeDelta::from_std(by).ok().and_then(|by| by.num_microseconds());
        hand.fetch_add(by.expect("an advance fits in 64 bits of microseconds"), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_until_advanced_and_clones_share_it() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let other = clock.clone();
        assert_eq!(clock.now(), DateTime::UNIX_EPOCH);
        other.advance(Duration::from_millis(1500));
        assert_eq!(clock.unix_ms(), 1500);
    }
}
