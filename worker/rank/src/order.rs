//! Which sample stands at which position of a pass over the data, and each sample's own seed. Pure, O(1) memory.
//!
//! The order is a keyed permutation of `0..samples`: a Feistel network over the smallest power of four that is
//! not below `samples`, with cycle walking. A Feistel network is a bijection whatever its round function, and
//! walking (apply it again while the result is `samples` or above) restricts it to the samples: on average below
//! four rounds of it, and never endless, because the walk goes along a cycle that began inside. Nothing here
//! knows of ranks, so the order is the same for any number of them.
//!
//! The numbers are a promise: a job that resumes under a newer program must go on in the same order. Tests pin them.

/// Four are enough for Luby and Rackoff's argument; a weak round function on small domains wants more.
const ROUNDS: usize = 8;
/// Keeps the streams of the two uses of the job's seed apart.
const ORDER_STREAM: u64 = 0x6f72_6465_7200_0001;
const SAMPLE_STREAM: u64 = 0x7361_6d70_6c65_0001;

/// Where each position of one data epoch leads.
#[derive(Debug, Clone)]
pub(crate) struct Permutation {
    samples: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The order of `data_epoch` in a job with `seed`.
    pub(crate) fn new(seed: u64, data_epoch: u64, samples: u64) -> Self {
        let bits = u64::BITS - samples.saturating_sub(1).leading_zeros();
        let mut state = mix(mix(seed ^ ORDER_STREAM).wrapping_add(data_epoch));
        let keys = std::array::from_fn(|_| {
            state = mix(state);
            state
        });
        Self { samples, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The sample at `position`.
    ///
    /// # Panics
    /// If `position` is not below the number of samples.
    pub(crate) fn sample_at(&self, position: u64) -> u64 {
        assert!(position < self.samples, "position {position} of {} samples", self.samples);
        let mut value = self.encrypt(position);
        while self.samples <= value {
            value = self.encrypt(value);
        }
        value
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// All the randomness a loader gets for one sample: a function of these three alone.
pub(crate) fn sample_seed(seed: u64, data_epoch: u64, sample: u64) -> u64 {
    mix(mix(mix(seed ^ SAMPLE_STREAM).wrapping_add(data_epoch)).wrapping_add(sample))
}

/// A bijection of 64 bits in which every input bit reaches every output bit.
///
/// # Source
/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014: the step of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(seed: u64, data_epoch: u64, samples: u64) -> Vec<u64> {
        let permutation = Permutation::new(seed, data_epoch, samples);
        (0..samples).map(|position| permutation.sample_at(position)).collect()
    }

    proptest! {
        #[test]
        fn every_sample_stands_at_exactly_one_position(
            seed: u64, data_epoch in 0u64..1000, samples in 1u64..5000,
        ) {
            let mut sorted = order(seed, data_epoch, samples);
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..samples));
        }

        #[test]
        fn a_position_far_out_in_a_huge_epoch_leads_to_one_of_its_samples(
            seed: u64, samples in 1u64 << 40..1 << 62, share in 0.0..1.0f64,
        ) {
            let position = ((samples as f64 * share) as u64).min(samples - 1);
            prop_assert!(Permutation::new(seed, 0, samples).sample_at(position) < samples);
        }
    }

    #[test]
    fn epochs_and_seeds_differ_in_order_and_the_order_looks_random() {
        let first = order(7, 0, 1437);
        for other in [order(7, 1, 1437), order(8, 0, 1437), (0..1437).collect()] {
            let equal = first.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(equal < 12, "{equal} positions equal, 1 expected");
        }
        // Neighbours at random lie a third of the length apart on average.
        let jump: u64 = first.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
        let average = jump as f64 / 1436.0;
        assert!((429.0..529.0).contains(&average), "{average}");
    }

    /// Written by a second implementation of the description above, in another language.
    #[test]
    fn the_numbers_are_pinned() {
        assert_eq!(order(7, 0, 10), PINNED_ORDER);
        assert_eq!([sample_seed(7, 0, 0), sample_seed(7, 1, 3)], PINNED_SEEDS);
    }

    const PINNED_ORDER: [u64; 10] = [7, 8, 2, 0, 5, 6, 1, 9, 3, 4];
    const PINNED_SEEDS: [u64; 2] = [0x969e_30dc_884a_a9c7, 0x4ced_17cb_6c29_c4b1];

    #[test]
    fn sample_seeds_do_not_repeat() {
        let mut seeds: Vec<u64> =
            (0..20).flat_map(|epoch| (0..500).map(move |s| sample_seed(1, epoch, s))).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 20 * 500);
    }
}
