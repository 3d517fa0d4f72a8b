//! Rows of a panel put together from pieces that lie apart in memory: patches of an image.
#![expect(unsafe_code, reason = "copies by pointer what the caller has checked")]

use super::element::Plain;

/// Lanes of a row that come from neighbours in memory, or from every so manieth.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Piece {
    pub(crate) lane: usize,
    pub(crate) len: usize,
    /// Where its first element lies, counted from the row's beginning in memory.
    pub(crate) from: usize,
}

/// Rows with the same pieces, each a step further in memory. Lanes of no piece become zero.
///
/// # Safety
/// For whoever calls a kernel with it: every piece of every row can be read; pieces are disjoint and below the
/// width, which is that of the kernel's panels; every row can be written at its place.
#[derive(Debug)]
pub(crate) struct Gather<'a, T> {
    pub(crate) pieces: &'a [Piece],
    pub(crate) rows: usize,
    /// From a lane of a piece to the next, in memory.
    pub(crate) lane_step: usize,
    pub(crate) from: *const T,
    pub(crate) from_step: usize,
    pub(crate) to: *mut T,
    pub(crate) to_step: usize,
    pub(crate) width: usize,
}

/// # Safety
/// See [`Gather`].
pub(super) unsafe fn portable<T: Plain>(call: &Gather<'_, T>) {
    for row in 0..call.rows {
        // SAFETY: a row of the panel, its lanes, and pieces that can be read, as the caller vouches.
        unsafe {
            let to = call.to.add(row * call.to_step);
            for lane in 0..call.width {
                *to.add(lane) = T::default();
            }
            for piece in call.pieces {
                let from = call.from.add(row * call.from_step + piece.from);
                for i in 0..piece.len {
                    *to.add(piece.lane + i) = *from.add(i * call.lane_step);
                }
            }
        }
    }
}
