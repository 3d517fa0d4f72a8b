//! Grains: the pieces of a global batch, the same whatever the world size.

use std::ops::Range;

/// What one grain adds to the step's sums.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GrainSums {
    /// Sum of the loss.
    pub loss_sum: f64,
    /// Sum of the weights.
    pub weight: f64,
    /// (sum, weight) of each metric.
    pub metrics: Vec<(f64, f64)>,
}

/// The grains of a rank: contiguous blocks whose counts differ by at most one, larger ones first.
///
/// # Panics
/// If `rank` is not below `world`.
pub fn grains_of(rank: usize, world: usize, grains_total: usize) -> Range<usize> {
    assert!(rank < world, "rank {rank} of {world}");
    let (each, larger) = (grains_total / world, grains_total % world);
    let start = |rank: usize| rank * each + rank.min(larger);
    start(rank)..start(rank + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_cover_all_grains_in_order_and_differ_by_one(world in 1..65_usize, total in 0..300_usize) {
            let blocks: Vec<_> = (0..world).map(|rank| grains_of(rank, world, total)).collect();
            let all: Vec<_> = blocks.iter().cloned().flatten().collect();
            prop_assert_eq!(all, (0..total).collect::<Vec<_>>());
            let counts = blocks.iter().map(ExactSizeIterator::len);
            let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
            prop_assert!(most - least <= 1);
        }
    }
}
