//! How often and how long to try again: values, not loops at every call.

use std::future::Future;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::ClientError;

/// When to give up, and how long to wait in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Tries in all, the first included. At least 1.
    pub attempts: u32,
    /// Ceiling of the first wait; doubles with each further one.
    pub first_delay: Duration,
    /// Ceiling of every wait.
    pub max_delay: Duration,
}

impl Policy {
    /// One try.
    pub const NEVER: Self =
        Self { attempts: 1, first_delay: Duration::ZERO, max_delay: Duration::ZERO };
    /// For a person who waits: gives up after about two seconds.
    pub const BRIEF: Self = Self {
        attempts: 4,
        first_delay: Duration::from_millis(100),
        max_delay: Duration::from_secs(1),
    };
    /// For a daemon whose server may be restarting: as often as it takes, at most five seconds apart.
    pub const PATIENT: Self = Self {
        attempts: u32::MAX,
        first_delay: Duration::from_millis(100),
        max_delay: Duration::from_secs(5),
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::BRIEF
    }
}

/// The waits of one policy, one after the other.
#[derive(Debug)]
pub struct Backoff {
    policy: Policy,
    failures: u32,
    random: Option<StdRng>,
}

impl Backoff {
    /// Nothing has failed yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, failures: 0, random: None }
    }

    /// Something worked: the next failure counts as the first.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// After a failure: how long to wait before the next try, or `None` when the tries are used up.
    ///
    /// The wait is drawn between half the ceiling and the ceiling, so that many who were cut off at the
    /// same moment do not come back at the same moment.
    pub fn next_delay(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        if self.policy.attempts <= self.failures && self.policy.attempts != u32::MAX {
            return None;
        }
        let doublings = (self.failures - 1).min(20);
        let ceiling =
            self.policy.first_delay.saturating_mul(1 << doublings).min(self.policy.max_delay);
        let random = self.random.get_or_insert_with(StdRng::from_os_rng);
        Some(ceiling.mul_f64(random.random_range(0.5..=1.0)))
    }
}

/// Runs `call` until it succeeds, fails for good, or the policy's tries are used up.
///
/// # Errors
/// The last error.
pub async fn run<T, F>(policy: Policy, mut call: impl FnMut() -> F) -> Result<T, ClientError>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut backoff = Backoff::new(policy);
    loop {
        let error = match call().await {
            Ok(value) => return Ok(value),
            Err(error) if !error.is_retryable() => return Err(error),
            Err(error) => error,
        };
        match backoff.next_delay() {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_ceiling_and_end_with_the_attempts() {
        let policy = Policy {
            attempts: 5,
            first_delay: Duration::from_millis(100),
            max_delay: Duration::from_millis(300),
        };
        let mut backoff = Backoff::new(policy);
        for ceiling_ms in [100, 200, 300, 300] {
            let delay = backoff.next_delay().unwrap();
            let ceiling = Duration::from_millis(ceiling_ms);
            assert!(ceiling / 2 <= delay && delay <= ceiling, "{delay:?} against {ceiling:?}");
        }
        assert_eq!(backoff.next_delay(), None);
        backoff.reset();
        assert!(backoff.next_delay().is_some());
    }

    #[test]
    fn one_attempt_never_waits() {
        assert_eq!(Backoff::new(Policy::NEVER).next_delay(), None);
    }
}
