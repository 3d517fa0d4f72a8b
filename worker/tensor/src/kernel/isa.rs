//! Which instruction set kernels use: found once per process, the same for all of them.
#![expect(unsafe_code, reason = "calls code compiled for what the processor was found to have")]

use std::sync::OnceLock;

/// What kernels are compiled for, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Whatever the target has always: SSE2 on x86-64.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, DQ, BW and VL, on top of AVX2 and FMA.
    Avx512,
}

impl Isa {
    /// All that this processor can run.
    #[cfg(test)]
    pub(crate) fn supported() -> impl Iterator<Item = Self> {
        [Self::Baseline, Self::Avx2, Self::Avx512].into_iter().filter(|&each| each <= isa())
    }

    /// This one or the best that the processor has, if that is less: what may be run.
    pub(crate) fn runnable(self) -> Self {
        self.min(isa())
    }
}

/// The best instruction set of this processor.
pub(crate) fn isa() -> Isa {
    static FOUND: OnceLock<Isa> = OnceLock::new();
    *FOUND.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    match (has_avx2, has_avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        (false, _) => Isa::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Baseline
}

/// Loops that are worth compiling once for each instruction set.
///
/// `run` must be `#[inline(always)]`, and so must everything it calls in its loops: only then does the
/// compiler see them inside a function that may use wide vectors. Closures handed to functions of the library, such
/// as an array's `map`, are not always seen: loops are.
pub(crate) trait Kernel {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs the loops with the widest vectors of this processor.
///
/// # Determinism
/// The same bits on every instruction set: Rust neither contracts `a * b + c` into one rounding nor
/// reorders sums of floats, whatever the vectors' width.
pub(crate) fn vectorized<K: Kernel>(kernel: K) -> K::Output {
    vectorized_on(isa(), kernel)
}

/// The same on an instruction set of choice, or on the processor's best if it has not that one.
///
/// Inlined: a copy of what a kernel was given only just now, in other pieces than it was written in, waits until every
/// store before it has left the core.
#[inline(always)]
pub(crate) fn vectorized_on<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.runnable() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `runnable` answers with nothing that the processor was not found to have.
        Isa::Avx512 => unsafe { x86::run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::run_avx2(kernel) },
        _ => kernel.run(),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Kernel;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run()
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
    pub(super) fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Axpy<'a>(&'a mut [f32], &'a [f32]);

    impl Kernel for Axpy<'_> {
        type Output = f32;

        #[inline(always)]
        fn run(self) -> f32 {
            for (y, x) in self.0.iter_mut().zip(self.1) {
                *y = *y * 1.1 + *x;
            }
            self.0.iter().sum()
        }
    }

    #[test]
    fn loops_give_the_same_bits_on_every_instruction_set() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32).sin()).collect();
        let run = |isa| {
            let mut y: Vec<f32> = x.iter().map(|x| x * 0.7 + 0.1).collect();
            let sum = vectorized_on(isa, Axpy(&mut y, &x));
            (y.iter().map(|y| y.to_bits()).collect::<Vec<_>>(), sum.to_bits())
        };
        for isa in Isa::supported() {
            assert_eq!(run(isa), run(Isa::Baseline), "{isa:?}");
        }
        let mut best = x.clone();
        vectorized(Axpy(&mut best, &x));
        let mut least = x.clone();
        vectorized_on(Isa::Baseline, Axpy(&mut least, &x));
        assert_eq!(best, least);
    }

    #[test]
    fn nothing_runs_that_the_processor_has_not() {
        assert_eq!(Isa::supported().max(), Some(isa()));
        for wished in [Isa::Baseline, Isa::Avx2, Isa::Avx512] {
            assert_eq!(wished.runnable() == wished, wished <= isa());
        }
    }
}
