//! Dropout, whose mask is a function of seed and place.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Call, Chain, Forward, Operation, Target};
use crate::{error::OpError, init::Stream, kernel::Write, meta::Meta, real::Real};

/// Settings of a dropout.
///
/// # The mask
/// Places 2k and 2k + 1 have the lower and the upper half of number k of the stream of `seed` and the
/// name "dropout" ([`Stream`]). An element is dropped if its half is below p · 2³², rounded to nearest.
///
/// # Source
/// Srivastava et al., Dropout, 2014.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// Probability that an element becomes 0, from 0 to 1. The others are divided by 1 - p.
    pub p: f64,
    /// To be another one in each step and for each use.
    pub seed: u64,
}

impl Operation for Dropout {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        call.require((0.0..=1.0).contains(&self.p), "p must be in 0..=1")?;
        out.set(dtype, &call.inputs[0].shape);
        Ok(())
    }

    /// `y = x m` with m being 0 or 1 / (1 - p); what is dropped still shows NaN and infinity.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        self.apply(cx.out.floats, Write::Set, cx.inputs[0].floats);
        Ok(())
    }

    /// `dx = g m`, the mask being drawn again.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        self.apply(to.dst, to.mode, chain.grad);
    }
}

impl Dropout {
    fn apply<T: Real>(&self, dst: &mut [T], mode: Write, x: &[T]) {
        /// Elements whose mask is drawn at once.
        const CHUNK: usize = 32;
        let stream = Stream::new(self.seed, "dropout");
        let dropped = (self.p * (1_u64 << 32) as f64).round() as u64;
        let kept = T::from_f64(if self.p < 1.0 { 1.0 / (1.0 - self.p) } else { 0.0 });
        for (chunk, (dst, x)) in dst.chunks_mut(CHUNK).zip(x.chunks(CHUNK)).enumerate() {
            let mut mask = [T::ZERO; CHUNK];
            for (pair, mask) in mask.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let bits = stream.bits((chunk * CHUNK / 2 + pair) as u64);
                let factor = |half: u64| if half < dropped { T::ZERO } else { kept };
                *mask = [factor(bits & 0xffff_ffff), factor(bits >> 32)];
            }
            crate::kernel::zip(dst, mode, [x, &mask[..x.len()]], |[x, m]| x * m);
        }
    }
}
