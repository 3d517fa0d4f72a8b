//! Leases: how long a node's word holds, and when its silence proves that its ranks are gone.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// The times that server and agents agree on; the heartbeat must fit them, and is not needed afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    lease: Duration,
    orphan_grace: Duration,
}

/// Why terms do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseTermsError {
    /// One lost heartbeat would cost the lease.
    #[error("a lease of {lease:?} does not outlast two heartbeats of {heartbeat:?}")]
    TooShort {
        /// As given.
        heartbeat: Duration,
        /// As given.
        lease: Duration,
    },
    /// Longer than a date can say.
    #[error("{what} of {value:?} is longer than a day")]
    TooLong {
        /// Which.
        what: &'static str,
        /// As given.
        value: Duration,
    },
}

/// Ceiling of each term: past it the word "lease" means nothing.
const LONGEST_TERM: Duration = Duration::from_secs(86_400);

impl LeaseTerms {
    /// Terms that fit together: a lease outlasts two heartbeats, nothing exceeds a day.
    ///
    /// # Errors
    /// Terms that do not.
    pub fn new(
        heartbeat: Duration,
        lease: Duration,
        orphan_grace: Duration,
    ) -> Result<Self, LeaseTermsError> {
        let terms = [("heartbeat", heartbeat), ("lease", lease), ("orphan grace", orphan_grace)];
        for (what, value) in terms {
            if LONGEST_TERM < value {
                return Err(LeaseTermsError::TooLong { what, value });
            }
        }
        if lease <= heartbeat * 2 {
            return Err(LeaseTermsError::TooShort { heartbeat, lease });
        }
        Ok(Self { lease, orphan_grace })
    }

    /// How long its ranks go on when no server answers.
    pub fn orphan_grace(self) -> Duration {
        self.orphan_grace
    }

    /// When a lease granted at `now` runs out.
    pub fn expiry(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now + delta(self.lease)
    }

    /// From when on the silence of a node proves that its ranks are gone: it stops them itself after the grace.
    pub fn gone_at(self, lease_expires_at: DateTime<Utc>) -> DateTime<Utc> {
        lease_expires_at + delta(self.orphan_grace)
    }

    /// Whether new work may be given to a node: its lease holds, and it was heard since a lease ago (an extension
    /// at the server's start is no sign of life).
    pub fn takes_work(
        self,
        last_seen_at: DateTime<Utc>,
        lease_expires_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> bool {
        now < lease_expires_at && now < self.expiry(last_seen_at)
    }
}

/// A duration that [`LeaseTerms`] or a job's limits have already bounded.
pub(crate) fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> LeaseTerms {
        let [heartbeat, lease, orphan] = [5, 20, 600].map(Duration::from_secs);
        LeaseTerms::new(heartbeat, lease, orphan).unwrap()
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn terms_that_do_not_fit_are_refused_with_their_numbers() {
        let [five, nine] = [5, 9].map(Duration::from_secs);
        let error = LeaseTerms::new(five, nine, nine).unwrap_err();
        assert_eq!(error, LeaseTermsError::TooShort { heartbeat: five, lease: nine });
        assert!(error.to_string().contains("9s"));
        assert!(LeaseTerms::new(five, LONGEST_TERM * 2, nine).is_err());
    }

    #[test]
    fn a_lease_that_was_extended_is_no_sign_of_life() {
        assert!(!terms().takes_work(at(900), at(1020), at(1000)));
        assert!(terms().takes_work(at(990), at(1020), at(1000)));
        assert!(!terms().takes_work(at(990), at(1000), at(1000)));
    }

    #[test]
    fn silence_proves_death_only_after_the_grace() {
        assert_eq!(terms().gone_at(at(100)), at(700));
    }
}
