//! Sleeping on a shared word until it changes, with a deadline.

use std::{
    sync::atomic::AtomicU32,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    thread::futex::{self, Flags, Timespec},
};

/// How a wait ended. Neither says that the word has any value: look again.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Woken, interrupted, or the word was no longer as expected.
    LookAgain,
    /// The deadline has passed.
    TimedOut,
}

/// Sleeps while `word` is `expected`, until somebody wakes it or `deadline` passes.
///
/// Shared between processes: waiter and waker may have the word mapped at different addresses.
pub fn wait_until(word: &AtomicU32, expected: u32, deadline: Instant) -> Waited {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Waited::TimedOut;
    }
    match futex::wait(word, Flags::empty(), expected, Some(&timespec(left))) {
        Err(Errno::TIMEDOUT) => Waited::TimedOut,
        // AGAIN: the word had changed. INTR: a signal. Anything else cannot happen to a mapped,
        // aligned word, and looking again is right for it too.
        Ok(()) | Err(_) => Waited::LookAgain,
    }
}

/// Wakes everybody who sleeps on `word`.
pub fn wake_all(word: &AtomicU32) {
    let woken = futex::wake(word, Flags::empty(), i32::MAX.cast_unsigned());
    debug_assert!(woken.is_ok(), "futex wake: {woken:?}");
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
