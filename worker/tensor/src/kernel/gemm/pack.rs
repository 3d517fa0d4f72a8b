//! Where the panels of a product come from.
#![expect(unsafe_code, reason = "hands slices of checked extent to kernels that take pointers")]

use std::ops::Range;

use super::{Matrix, element::Transpose, plan::chunks};
use crate::{
    kernel::isa::{Isa, Kernel, vectorized_on},
    real::Real,
};

/// Rows of the source that are packed into all panels before the next: whole lines of the cache in panels of 14.
const ROWS_AT_ONCE: usize = 8;

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

    /// Packs panels of `width` lanes, the last one of those that are left, one after the other.
    ///
    /// `panels` has `depth.len() * lanes.len()` elements.
    fn pack_panels(
        &self,
        isa: Isa,
        panels: &mut [T],
        width: usize,
        depth: Range<usize>,
        lanes: Range<usize>,
    ) {
        let mut rest = panels;
        for lanes in chunks(lanes, width) {
            let (panel, others) = rest.split_at_mut(lanes.len() * depth.len());
            self.pack(isa, panel, lanes.len(), depth.clone(), lanes);
            rest = others;
        }
    }

    /// The same if all of it lies in memory so that lanes run along the depth: the elements from the first on and the
    /// step from lane to lane.
    fn along(&self, _depth: Range<usize>, _lanes: Range<usize>) -> Option<(&[T], usize)> {
        None
    }

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

    fn prefetch_to<const NEAREST: bool>(&self, depth: Range<usize>, lanes: Range<usize>) {
        let (outer, inner) =
            if self.0.column_stride == 1 { (depth, lanes) } else { (lanes, depth) };
        let (stride, step) = (
            self.0.row_stride.max(self.0.column_stride),
            self.0.row_stride.min(self.0.column_stride),
        );
        for i in outer {
            for j in inner.clone().step_by(64 / size_of::<T>()) {
                prefetch::<NEAREST, _>(self.0.data.as_ptr().wrapping_add(i * stride + j * step));
            }
        }
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
            let (stride, lanes) = (k_stride, lanes.len());
            vectorized_on(isa, CopyRows { panel, width, from, stride, lanes });
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

    /// Where lanes are neighbours a few rows of all panels go before the next: rows far apart fall on the same places of the
    /// nearest cache, so that what a narrow panel leaves of a line would be gone when the next panel comes.
    fn pack_panels(
        &self,
        isa: Isa,
        panels: &mut [T],
        width: usize,
        depth: Range<usize>,
        lanes: Range<usize>,
    ) {
        let rows = if self.0.column_stride == 1 { ROWS_AT_ONCE } else { depth.len().max(1) };
        for block in chunks(depth.clone(), rows) {
            if block.len() < depth.len() {
                let next = block.end..(block.end + rows).min(depth.end);
                self.prefetch_to::<true>(next, lanes.clone());
            }
            let mut rest = &mut *panels;
            for lanes in chunks(lanes.clone(), width) {
                let (panel, others) = rest.split_at_mut(lanes.len() * depth.len());
                let of_block = (block.start - depth.start) * lanes.len();
                let panel = &mut panel[of_block..][..block.len() * lanes.len()];
                self.pack(isa, panel, lanes.len(), block.clone(), lanes);
                rest = others;
            }
        }
    }

    fn along(&self, depth: Range<usize>, lanes: Range<usize>) -> Option<(&[T], usize)> {
        (self.0.row_stride == 1 && !depth.is_empty() && !lanes.is_empty()).then(|| {
            let reach = (lanes.len() - 1) * self.0.column_stride + depth.len();
            (&self.from(depth.start, lanes.start)[..reach], self.0.column_stride)
        })
    }

    fn prefetch(&self, depth: Range<usize>, lanes: Range<usize>) {
        self.prefetch_to::<false>(depth, lanes);
    }

    fn direct(&self, depth: Range<usize>, lanes: Range<usize>) -> Option<(&[T], usize)> {
        (self.0.column_stride == 1 && !depth.is_empty() && !lanes.is_empty()).then(|| {
            let reach = (depth.len() - 1) * self.0.row_stride + lanes.len();
            (&self.from(depth.start, lanes.start)[..reach], self.0.row_stride)
        })
    }
}

/// Towards the first-level cache, or the second.
#[inline(always)]
fn prefetch<const NEAREST: bool, T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it touches nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if NEAREST {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T1>(at.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

struct CopyRows<'a, T> {
    panel: &'a mut [T],
    width: usize,
    from: &'a [T],
    stride: usize,
    lanes: usize,
}

impl<T: Real> Kernel for CopyRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        copy_rows_of(self.panel, self.width, 0, self.from, self.stride, self.lanes);
    }
}

/// Rows that lie in memory as they do in the panel: `lanes` elements at each `stride` to each row's `lane`.
#[inline(always)]
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
#[inline(always)]
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
