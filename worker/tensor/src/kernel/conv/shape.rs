//! What a convolution's shape says.

use super::patches::{Axis, Taps};

/// The shape of a convolution of images. Any numbers may stand in it until [`ConvShape::fault`] has seen them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConvShape {
    pub(crate) batch: usize,
    pub(crate) in_channels: usize,
    pub(crate) in_height: usize,
    pub(crate) in_width: usize,
    pub(crate) out_channels: usize,
    /// Rows and columns of the kernel.
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    /// Zeros at either side.
    pub(crate) padding: [usize; 2],
    /// Pixels from one row or column of the kernel to the next.
    pub(crate) dilation: [usize; 2],
    pub(crate) groups: usize,
}

/// Lengths, paddings and reaches above this are refused, so that no sum of them overflows.
const MAX_LEN: usize = 1 << 24;
/// No buffer of a convolution has more elements.
const MAX_ELEMENTS: usize = 1 << 40;

/// Pixels of the input that lie on the same remainder by the stride, and the taps that meet them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phase {
    /// Where the first of them lies.
    pub(super) first: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    /// From such a pixel to the output's.
    pub(super) taps: Taps,
    /// The first of the kernel's rows and columns that are among the taps, and the steps to the next.
    pub(super) kernel: [(usize, usize); 2],
}

impl ConvShape {
    /// What cannot be, as a rule that is broken.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let lens = [self.in_height, self.in_width, self.kernel[0], self.kernel[1]];
        let steps = [self.stride, self.padding, self.dilation];
        let is_large = |len: &usize| MAX_LEN < *len;
        let product = |lens: &[usize]| {
            let all = lens.iter().try_fold(1_usize, |all, len| all.checked_mul(*len));
            all.filter(|&all| all <= MAX_ELEMENTS)
        };
        if self.groups == 0 || self.stride.contains(&0) || self.dilation.contains(&0) {
            return Some("stride, dilation and groups must be 1 or more");
        }
        if self.kernel.contains(&0) {
            return Some("the kernel must have a row and a column");
        }
        let channels = [self.in_channels, self.out_channels];
        if channels.iter().any(|channels| !channels.is_multiple_of(self.groups)) {
            return Some("groups must divide the channels");
        }
        if lens.iter().chain(steps.as_flattened()).any(is_large) {
            return Some("lengths, strides, paddings and dilations must be 2^24 or less");
        }
        let reach = |axis: usize| self.dilation[axis] * (self.kernel[axis] - 1) + 1;
        let padded = |axis: usize, len: usize| len + 2 * self.padding[axis];
        if padded(0, self.in_height) < reach(0) || padded(1, self.in_width) < reach(1) {
            return Some("the kernel must fit into the padded image");
        }
        let (height, width) = (self.out_height(), self.out_width());
        let is_fine = product(&[self.batch, self.in_channels, self.in_height, self.in_width])
            .and(product(&[self.batch, self.out_channels, height, width]))
            .and(product(&[self.out_channels, self.in_channels, self.kernel[0], self.kernel[1]]));
        is_fine.is_none().then_some("images and weights must have 2^40 elements or fewer")
    }

    /// # Panics
    /// If the shape is faulty or the data do not fill it.
    pub(super) fn check(&self, x: usize, w: usize, y: usize) {
        let fault = self.fault();
        assert!(fault.is_none(), "{self:?}: {fault:?}");
        let expected = [self.in_len(), self.weight_len(), self.out_len()];
        assert!([x, w, y] == expected, "{self:?} needs {expected:?}, given {:?}", [x, w, y]);
    }

    pub(crate) fn out_height(&self) -> usize {
        self.out_along(0, self.in_height)
    }

    pub(crate) fn out_width(&self) -> usize {
        self.out_along(1, self.in_width)
    }

    fn out_along(&self, axis: usize, len: usize) -> usize {
        let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
        match (len + 2 * self.padding[axis]).checked_sub(reach) {
            Some(room) => room / self.stride[axis] + 1,
            None => 0,
        }
    }

    pub(crate) fn in_len(&self) -> usize {
        self.batch * self.in_channels * self.in_plane()
    }

    pub(crate) fn out_len(&self) -> usize {
        self.batch * self.out_channels * self.out_plane()
    }

    pub(crate) fn weight_len(&self) -> usize {
        self.out_channels * (self.in_channels / self.groups) * self.taps()
    }

    pub(super) fn in_plane(&self) -> usize {
        self.in_height * self.in_width
    }

    pub(super) fn out_plane(&self) -> usize {
        self.out_height() * self.out_width()
    }

    /// Elements of a kernel's one channel.
    pub(super) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Output and input channels of a group.
    pub(super) fn channels_per_group(&self) -> (usize, usize) {
        (self.out_channels / self.groups, self.in_channels / self.groups)
    }

    /// From an output's pixel, times the stride, to the inputs' that it sees.
    pub(super) fn forward_taps(&self) -> Taps {
        let [y, x] = [0, 1].map(|axis| Axis {
            count: self.kernel[axis],
            first: -self.padding[axis].cast_signed(),
            step: self.dilation[axis].cast_signed(),
        });
        Taps { y, x }
    }

    /// All pixels of the input by their remainders, row by row.
    pub(super) fn phases(self) -> impl Iterator<Item = Phase> {
        let [rows, columns] = self.stride;
        (0..rows.min(self.in_height))
            .flat_map(move |y| (0..columns.min(self.in_width)).map(move |x| self.phase(y, x)))
    }

    fn phase(&self, y: usize, x: usize) -> Phase {
        let (row, rows) = self.meeting(0, y);
        let (column, columns) = self.meeting(1, x);
        Phase {
            first: y * self.in_width + x,
            height: (self.in_height - y).div_ceil(self.stride[0]),
            width: (self.in_width - x).div_ceil(self.stride[1]),
            taps: Taps { y: rows, x: columns },
            kernel: [row, column],
        }
    }

    /// Which places i of the kernel meet pixels at remainder `at`: those where the stride divides
    /// at + padding − i·dilation. The first and the step of i; the quotients.
    fn meeting(&self, axis: usize, at: usize) -> ((usize, usize), Axis) {
        let (stride, dilation) = (self.stride[axis], self.dilation[axis]);
        let distance =
            |i: usize| (at + self.padding[axis]).cast_signed() - (i * dilation).cast_signed();
        let meets = |i: &usize| distance(*i).rem_euclid(stride.cast_signed()) == 0;
        let places = 0..self.kernel[axis];
        let Some(first) = places.clone().find(meets) else {
            return ((0, 1), Axis { count: 0, first: 0, step: 0 });
        };
        let second = places.clone().skip(first + 1).find(meets);
        let step = second.map_or(places.len(), |second| second - first);
        let quotient = |i: usize| distance(i).div_euclid(stride.cast_signed());
        let axis = Axis {
            count: (places.len() - first).div_ceil(step),
            first: quotient(first),
            step: second.map_or(0, |second| quotient(second) - quotient(first)),
        };
        ((first, step), axis)
    }
}
