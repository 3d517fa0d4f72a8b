//! How operations see the axes of a tensor.

use crate::meta::{Dims, MAX_RANK, elements};

/// A tensor around one of its axes: `[outer, len, inner]`. The lengths are exact where it is not empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around {
    pub(super) outer: usize,
    pub(super) len: usize,
    pub(super) inner: usize,
}

impl Around {
    pub(super) fn new(shape: &[usize], axis: usize) -> Self {
        let (outer, inner) = (elements(&shape[..axis]), elements(&shape[axis + 1..]));
        Self { outer, len: shape[axis], inner }
    }
}

/// From one element to the next along each axis, of a tensor that is not empty.
pub(super) fn strides(shape: &[usize]) -> Dims {
    let mut strides: Dims = shape.iter().copied().collect();
    let mut stride = 1;
    for (to, &length) in strides.iter_mut().zip(shape).rev() {
        *to = stride;
        stride *= length;
    }
    strides
}

/// Visits all places of a shape in row-major order, each with its offset under `strides`.
///
/// The offsets must fit: what they lead into is not empty.
pub(super) fn each_place(shape: &[usize], strides: &[usize], mut visit: impl FnMut(usize, usize)) {
    let mut at = [0; MAX_RANK];
    let mut offset = 0;
    for place in 0..elements(shape) {
        visit(place, offset);
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            offset += strides[axis];
            if at[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * shape[axis];
            at[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_in_order_with_their_offsets() {
        assert_eq!(strides(&[2, 3, 4]).as_slice(), [12, 4, 1]);
        assert!(strides(&[]).is_empty());
        let visits = |shape: &[usize], strides: &[usize]| {
            let mut visits = Vec::new();
            each_place(shape, strides, |place, offset| visits.push((place, offset)));
            visits
        };
        assert_eq!(visits(&[2, 2], &[1, 10]), [(0, 0), (1, 10), (2, 1), (3, 11)]);
        assert_eq!(visits(&[], &[]), [(0, 0)]);
        assert_eq!(visits(&[3, 0], &[1, 1]), []);
    }
}
