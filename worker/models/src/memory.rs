//! What memory a job's model needs, before anything is computed.

use std::fmt;

/// Bytes of one rank, apart from what the platform and the guests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Weights.
    pub parameters: u64,
    /// Running statistics.
    pub buffers: u64,
    /// Gradients, once.
    pub gradients: u64,
    /// The optimizer's moments.
    pub moments: u64,
    /// The most that one grain's forward and backward pass keep at once, inputs included.
    pub activations: u64,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> u64 {
        let Self { parameters, buffers, gradients, moments, activations } = *self;
        [parameters, buffers, gradients, moments, activations]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        write!(
            f,
            "{} MiB: {} of parameters, {} of gradients, {} of moments, {} of activations",
            mib(self.total()),
            mib(self.parameters.saturating_add(self.buffers)),
            mib(self.gradients),
            mib(self.moments),
            mib(self.activations),
        )
    }
}
