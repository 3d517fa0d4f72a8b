//! The ReLU behind an operation, backwards.

use crate::{
    kernel::{Kernel, Threads, vectorized},
    real::Real,
};

/// Elements that are worth a thread's while.
const CHUNK: usize = 1 << 15;

/// Lets the gradient through where the result `y` is above 0 (or NaN), in place.
pub(super) fn stop_gradient<T: Real>(grad: &mut [T], y: &[T], threads: &Threads) {
    threads.for_each_chunk(grad, CHUNK, |index, grad| {
        let y = &y[index * CHUNK..][..grad.len()];
        vectorized(Stop { grad, y });
    });
}

struct Stop<'a, T> {
    grad: &'a mut [T],
    y: &'a [T],
}

impl<T: Real> Kernel for Stop<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (grad, &y) in self.grad.iter_mut().zip(self.y) {
            *grad = if y <= T::ZERO { T::ZERO } else { *grad };
        }
    }
}
