//! The threads that kernels share. A stand-in of one thread until the pool comes with the matrix product.

/// How many threads kernels may use.
#[derive(Debug, Clone, Default)]
pub struct Threads {}
