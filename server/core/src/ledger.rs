//! Whether every sample was used exactly once.

use lockstep_api::{LedgerEntry, Step};

/// The epochs whose positions `0..samples_per_epoch` are covered without gap or overlap, in ascending order.
///
/// `entries` are those that count, in any order. An entry that is not sane (a negative position, no samples,
/// past the end) makes its epoch incomplete.
pub fn complete_epochs(entries: &[LedgerEntry], samples_per_epoch: i64) -> Vec<i64> {
    let mut sorted: Vec<(i64, i64, i64)> =
        entries.iter().map(|e| (e.data_epoch, e.first_position, e.sample_count)).collect();
    sorted.sort_unstable();
    let mut complete = Vec::new();
    for epoch in sorted.chunk_by(|a, b| a.0 == b.0) {
        let covered = epoch.iter().try_fold(0i64, |next, &(_, first, count)| {
            (first == next && 0 < count).then(|| first.checked_add(count)).flatten()
        });
        if 0 < samples_per_epoch && covered == Some(samples_per_epoch) {
            complete.push(epoch[0].0);
        }
    }
    complete
}

/// Below which step each attempt's steps still count, when the attempts, in order, began at `first_steps`: a later
/// attempt takes the place of everything from its first step on. `None`: all of them count.
pub fn counts_below(first_steps: &[Step]) -> Vec<Option<Step>> {
    let mut below = Vec::with_capacity(first_steps.len());
    let mut lowest: Option<Step> = None;
    for &first_step in first_steps.iter().rev() {
        below.push(lowest);
        lowest = Some(lowest.map_or(first_step, |step| step.min(first_step)));
    }
    below.reverse();
    below
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(step: i64, data_epoch: i64, first_position: i64, sample_count: i64) -> LedgerEntry {
        LedgerEntry { step: Step(step), data_epoch, first_position, sample_count }
    }

    /// An epoch of `n` samples cut into batches, the last one short.
    fn epoch(data_epoch: i64, n: i64, batch: i64) -> Vec<LedgerEntry> {
        (0..)
            .map(|i| i * batch)
            .take_while(|first| *first < n)
            .map(|first| entry(first, data_epoch, first, batch.min(n - first)))
            .collect()
    }

    #[test]
    fn a_short_last_batch_completes_and_a_gap_overlap_or_surplus_does_not() {
        assert_eq!(complete_epochs(&epoch(3, 10, 4), 10), [3]);
        assert_eq!(complete_epochs(&epoch(3, 10, 4)[..2], 10), [0i64; 0]);
        assert_eq!(complete_epochs(&[entry(0, 0, 0, 6), entry(1, 0, 5, 5)], 10), [0i64; 0]);
        assert_eq!(complete_epochs(&[entry(0, 0, 0, 11)], 10), [0i64; 0]);
        assert_eq!(
            complete_epochs(&[entry(0, 0, 0, i64::MAX), entry(1, 0, i64::MAX, 1)], 10),
            [0i64; 0]
        );
        assert_eq!(complete_epochs(&[], 0), [0i64; 0]);
    }

    #[test]
    fn a_later_attempt_hides_what_it_does_again_and_no_more() {
        let below = counts_below(&[0, 40, 20, 60].map(Step));
        assert_eq!(below, [Some(Step(20)), Some(Step(20)), Some(Step(60)), None]);
        assert_eq!(counts_below(&[]), []);
    }

    proptest! {
        #[test]
        fn whole_epochs_are_complete_and_lose_it_with_any_one_entry(
            n in 1..200i64, batch in 1..50i64, epochs in 1..5i64, victim in any::<prop::sample::Index>(),
        ) {
            let mut entries: Vec<_> = (0..epochs).flat_map(|e| epoch(e, n, batch)).collect();
            entries.reverse();
            prop_assert_eq!(complete_epochs(&entries, n), (0..epochs).collect::<Vec<_>>());
            let gone = entries.remove(victim.index(entries.len()));
            prop_assert!(!complete_epochs(&entries, n).contains(&gone.data_epoch));
            entries.push(gone);
            entries.push(gone);
            prop_assert!(!complete_epochs(&entries, n).contains(&gone.data_epoch));
        }
    }
}
