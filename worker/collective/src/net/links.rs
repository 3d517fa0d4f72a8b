//! Faults of links that are made to happen on purpose: to all connections of one rank, where they meet the system.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What a byte takes on a slow link, whichever way it goes: 250 kB/s.
const SLOW_BYTE: Duration = Duration::from_micros(4);
/// It may carry what came together in so long.
const SLOW_BURST: Duration = Duration::from_millis(20);

/// A rank's links to ranks that share no memory with it, for whoever breaks them. Clones are about the same links.
#[derive(Debug, Clone, Default)]
pub struct Links {
    /// Whether anything is wrong: all that a sound link looks at.
    are_bad: Arc<AtomicBool>,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    are_cut: bool,
    slow: Option<Slow>,
    flips_next: bool,
}

#[derive(Debug)]
struct Slow {
    until: Instant,
    /// Up to when bytes were granted.
    granted_until: Instant,
}

impl Links {
    /// Nothing comes through any more, as if the cable were pulled: both ends stay open and hear nothing.
    pub fn cut(&self) {
        self.change(|faults| faults.are_cut = true);
    }

    /// For so long they carry next to nothing.
    pub fn slow(&self, duration: Duration) {
        let now = Instant::now();
        self.change(|faults| {
            faults.slow = Some(Slow { until: now + duration, granted_until: now });
        });
    }

    /// One bit of the next numbers that come in is another one.
    pub fn flip_next(&self) {
        self.change(|faults| faults.flips_next = true);
    }

    /// How many of `wanted` bytes may pass now; `None`: none yet, whatever the system says.
    pub(super) fn grant(&self, wanted: usize) -> Option<usize> {
        if !self.are_bad.load(Ordering::Relaxed) {
            return Some(wanted);
        }
        let mut faults = self.lock();
        if faults.are_cut {
            return None;
        }
        let now = Instant::now();
        let Some(slow) = faults.slow.as_mut().filter(|slow| now < slow.until) else {
            return Some(wanted);
        };
        slow.granted_until = slow.granted_until.max(now.checked_sub(SLOW_BURST).unwrap_or(now));
        let passed = now.saturating_duration_since(slow.granted_until);
        let bytes = passed.as_nanos() / SLOW_BYTE.as_nanos();
        let granted = usize::try_from(bytes).unwrap_or(usize::MAX).min(wanted);
        if granted == 0 {
            return None;
        }
        slow.granted_until += SLOW_BYTE * u32::try_from(granted).unwrap_or(u32::MAX);
        Some(granted)
    }

    /// So many bytes that were granted have not passed.
    pub(super) fn give_back(&self, unused: usize) {
        if unused != 0
            && self.are_bad.load(Ordering::Relaxed)
            && let Some(slow) = &mut self.lock().slow
        {
            let time = SLOW_BYTE * u32::try_from(unused).unwrap_or(u32::MAX);
            slow.granted_until = slow.granted_until.checked_sub(time).unwrap_or(slow.granted_until);
        }
    }

    /// Whether nothing may pass now.
    pub(super) fn are_blocked(&self) -> bool {
        self.are_bad.load(Ordering::Relaxed) && {
            let faults = self.lock();
            faults.are_cut || faults.slow.as_ref().is_some_and(|slow| Instant::now() < slow.until)
        }
    }

    /// What has come in, as the link gives it.
    pub(super) fn carry(&self, numbers: &mut [u8]) {
        if self.are_bad.load(Ordering::Relaxed)
            && let Some(first) = numbers.first_mut()
            && std::mem::take(&mut self.lock().flips_next)
        {
            *first ^= 1;
        }
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock());
        self.are_bad.store(true, Ordering::Relaxed);
    }

    /// A panic while it was held leaves it whole: every change is one statement.
    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sound_links_carry_everything_and_cut_ones_nothing() {
        let links = Links::default();
        assert_eq!((links.grant(1 << 30), links.are_blocked()), (Some(1 << 30), false));
        links.clone().cut();
        assert_eq!((links.grant(1), links.are_blocked()), (None, true));
    }

    #[test]
    fn slow_links_carry_their_rate_until_they_are_sound_again() {
        let links = Links::default();
        links.slow(Duration::from_millis(300));
        let (began, mut carried) = (Instant::now(), 0);
        while links.are_blocked() {
            carried += links.grant(1000).unwrap_or(0);
        }
        // One may have been granted when it was over.
        let most = (began.elapsed() + SLOW_BURST).as_secs_f64() / SLOW_BYTE.as_secs_f64() + 1000.0;
        assert!(0 < carried && carried as f64 <= most, "{carried} of {most}");
        assert_eq!(links.grant(1 << 20), Some(1 << 20));
    }

    #[test]
    fn what_was_granted_and_has_not_passed_is_granted_again() {
        let links = Links::default();
        links.slow(Duration::from_secs(60));
        let mut granted = 0;
        // Only what was given back can be there so soon again.
        while granted < 500 {
            links.give_back(granted);
            granted = links.grant(1000).unwrap_or(0);
        }
        links.give_back(granted);
        assert_eq!(links.grant(granted), Some(granted));
    }

    #[test]
    fn one_bit_of_the_next_numbers_is_flipped() {
        let links = Links::default();
        let mut numbers = [0; 2];
        links.flip_next();
        links.carry(&mut []);
        links.carry(&mut numbers);
        links.carry(&mut numbers);
        assert_eq!(numbers, [1, 0]);
    }
}
