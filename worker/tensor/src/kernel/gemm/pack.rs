//! Where the panels of a product come from.
#![expect(unsafe_code, reason = "hands slices of checked extent to kernels that take pointers")]

use std::ops::Range;

use super::{Matrix, element::Transpose};
use crate::{kernel::isa::Isa, real::Real};

/// An operand as the blocked product reads it: `depth` along the summed axis, lanes along the other. A is seen as
/// its transpose, so that both operands look the same.
pub(crate) trait PackSource<T>: Sync {
    /// Writes element (k, l) of the ranges to `panel[k * width + l]`, counted from the ranges' beginnings. What is
    /// in lanes from the end of the range up to `width` reaches no result.
    ///
    /// `panel` has `depth.len() * width` elements, `lanes` are no more than `width`.
    fn pack(
        &self,
        isa: Isa,
        panel: &mut [T],
        width: usize,
        depth: Range<usize>,
        lanes: Range<usize>,
    );

    /// Asks for the memory of what will be packed soon.
    fn prefetch(&self, _depth: Range<usize>, _lanes: Range<usize>) {}

    /// The same without a copy, if all of it lies in memory so that lanes are neighbours: the elements from the
    /// first on and the step along the depth.
    fn direct(&self, _depth: Range<usize>, _lanes: Range<usize>) -> Option<(&[T], usize)> {
        None
    }
}

/// A matrix in memory, `[depth, lanes]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strided<'a, T>(Matrix<'a, T>);

impl<'a, T: Real> Strided<'a, T> {
    pub(crate) fn new(matrix: Matrix<'a, T>) -> Self {
        Self(matrix)
    }

    fn from(&self, k: usize, l: usize) -> &'a [T] {
        &self.0.data[k * self.0.row_stride + l * self.0.column_stride..]
    }
}

impl<T: Real> PackSource<T> for Strided<'_, T> {
    fn pack(
        &self,
        isa: Isa,
        panel: &mut [T],
        width: usize,
        depth: Range<usize>,
        lanes: Range<usize>,
    ) {
        debug_assert!(depth.end <= self.0.rows && lanes.end <= self.0.columns);
        let panel = &mut panel[..depth.len() * width];
        if depth.is_empty() || lanes.is_empty() {
            return;
        }
        let (k_stride, l_stride) = (self.0.row_stride, self.0.column_stride);
        let from = self.from(depth.start, lanes.start);
        if l_stride == 1 {
            copy_rows_of(panel, width, 0, from, k_stride, lanes.len());
        } else if k_stride == 1 {
            let reach = (lanes.len() - 1) * l_stride + depth.len();
            let call = Transpose {
                from: from[..reach].as_ptr(),
                lane_stride: l_stride,
                lanes: lanes.len(),
                depth: depth.len(),
                to: panel.as_mut_ptr(),
                width,
            };
            // SAFETY: `reach` is what is read of the source; the panel has depth · width elements;
            // lanes are no more than the width; `kernels` is asked for an instruction set that is there.
            unsafe { (T::kernels(isa.runnable()).transpose)(&call) };
        } else {
            for (k, row) in panel.chunks_exact_mut(width).enumerate() {
                for (l, value) in row.iter_mut().enumerate().take(lanes.len()) {
                    *value = from[k * k_stride + l * l_stride];
                }
            }
        }
    }

    fn prefetch(&self, depth: Range<usize>, lanes: Range<usize>) {
        let (outer, inner) =
            if self.0.column_stride == 1 { (depth, lanes) } else { (lanes, depth) };
        let (stride, step) = (
            self.0.row_stride.max(self.0.column_stride),
            self.0.row_stride.min(self.0.column_stride),
        );
        for i in outer {
            for j in inner.clone().step_by(64 / size_of::<T>()) {
                prefetch(self.0.data.as_ptr().wrapping_add(i * stride + j * step));
            }
        }
    }

    fn direct(&self, depth: Range<usize>, lanes: Range<usize>) -> Option<(&[T], usize)> {
        (self.0.column_stride == 1 && !depth.is_empty() && !lanes.is_empty()).then(|| {
            let reach = (depth.len() - 1) * self.0.row_stride + lanes.len();
            (&self.from(depth.start, lanes.start)[..reach], self.0.row_stride)
        })
    }
}

/// Towards the second-level cache.
#[inline(always)]
fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it touches nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Rows that lie in memory as they do in the panel: `lanes` elements at each `stride` to each row's `lane`.
pub(crate) fn copy_rows_of<T: Real>(
    panel: &mut [T],
    width: usize,
    lane: usize,
    from: &[T],
    stride: usize,
    lanes: usize,
) {
    macro_rules! of_known_length {
        ($($length:literal)+) => {
            match lanes {
                $($length => copy_rows::<T, $length>(panel, width, lane, from, stride),)+
                _ => {
                    for (k, row) in panel.chunks_exact_mut(width).enumerate() {
                        row[lane..lane + lanes].copy_from_slice(&from[k * stride..][..lanes]);
                    }
                }
            }
        };
    }
    of_known_length!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 16 32);
}

/// A copy of known length is a few moves instead of a call.
fn copy_rows<T: Real, const LENGTH: usize>(
    panel: &mut [T],
    width: usize,
    lane: usize,
    from: &[T],
    stride: usize,
) {
    for (k, row) in panel.chunks_exact_mut(width).enumerate() {
        row[lane..lane + LENGTH].copy_from_slice(&from[k * stride..][..LENGTH]);
    }
}
