//! Numbers that grains of several processes have in common.

use std::fmt;

/// Those that compute the same tape at the same time on other grains: what a batch norm sums up, it sums up over all of
/// them.
///
/// Every one must apply the same operations in the same order, forward and backward. An implementation that cannot
/// reach the others keeps the reason to itself until it is asked; whatever numbers it leaves, they must not be used.
pub trait Peers: fmt::Debug + Send + Sync {
    /// Replaces `values` by their sums over all, the same bits everywhere.
    fn sum(&self, values: &mut [f64]);
}
