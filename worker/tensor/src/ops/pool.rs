//! Windows over the last two axes of `[n, c, h, w]`: greatest element and mean.
//!
//! # Determinism
//! Windows in row-major order, and the elements of one too. A mean is summed in f64.

use std::ops::{Range, RangeInclusive};

use serde::{Deserialize, Serialize};

use super::{Call, Chain, Forward, Operation, Target, squares::Squares};
use crate::{error::OpError, kernel::Write, meta::Meta, real::Real};

/// Windows of one size at even distances. Each setting is for rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool2d {
    /// Size of a window.
    pub kernel: [usize; 2],
    /// From one window to the next.
    pub stride: [usize; 2],
    /// How far the first and the last window may lie outside, at most half of a window.
    pub padding: [usize; 2],
}

/// The greatest element of each window; NaN counts as greatest. Its gradient goes to the first of equals.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxPool2d(pub(super) Pool2d);

/// The sum of each window divided by its size; what lies outside counts as zeros.
#[derive(Debug, Clone, Copy)]
pub(super) struct AvgPool2d(pub(super) Pool2d);

/// As many windows as asked for, which cover everything. Window i of o over length l reaches from
/// `⌊i l / o⌋` to `⌈(i + 1) l / o⌉`.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdaptiveAvgPool2d(pub(super) [usize; 2]);

/// Where windows lie. `axis` is 0 for rows and 1 for columns.
trait Windows {
    /// How many there are along an axis of that length.
    fn count(&self, axis: usize, len: usize) -> Result<usize, &'static str>;

    /// The part of window `index` inside of the axis; never empty.
    fn span(&self, axis: usize, index: usize, len: usize) -> Range<usize>;

    /// By what the sum of a window is divided.
    fn divisor(&self, rows: &Range<usize>, columns: &Range<usize>) -> f64;
}

impl Windows for Pool2d {
    fn count(&self, axis: usize, len: usize) -> Result<usize, &'static str> {
        let (kernel, stride) = (self.kernel[axis], self.stride[axis]);
        let padding = self.padding[axis];
        if kernel == 0 || stride == 0 {
            return Err("windows and their distance must be at least 1");
        }
        if kernel / 2 < padding {
            return Err("the padding must be at most half of the window");
        }
        // Twice the padding is at most the window: no overflow.
        let padded = len.checked_add(2 * padding).ok_or("the padded axis would be too long")?;
        let last = padded.checked_sub(kernel).ok_or("the window must fit into the padded axis")?;
        Ok(last / stride + 1)
    }

    fn span(&self, axis: usize, index: usize, len: usize) -> Range<usize> {
        let (start, padding) = (index * self.stride[axis], self.padding[axis]);
        let end = (start + self.kernel[axis]).min(len + padding);
        start.max(padding) - padding..end - padding
    }

    fn divisor(&self, _rows: &Range<usize>, _columns: &Range<usize>) -> f64 {
        self.kernel[0] as f64 * self.kernel[1] as f64
    }
}

impl Windows for AdaptiveAvgPool2d {
    fn count(&self, axis: usize, _len: usize) -> Result<usize, &'static str> {
        if self.0[axis] == 0 {
            Err("there must be a window along each axis")
        } else {
            Ok(self.0[axis])
        }
    }

    fn span(&self, axis: usize, index: usize, len: usize) -> Range<usize> {
        // Two lengths of up to 2⁴⁰ are multiplied.
        let (index, len, count) = (index as u128, len as u128, self.0[axis] as u128);
        let (start, end) = (index * len / count, ((index + 1) * len).div_ceil(count));
        start as usize..end as usize
    }

    fn divisor(&self, rows: &Range<usize>, columns: &Range<usize>) -> f64 {
        rows.len() as f64 * columns.len() as f64
    }
}

fn infer(windows: &impl Windows, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    let dtype = call.floats()?;
    let x = call.inputs[0];
    let &[n, c, height, width] = x.shape.as_slice() else {
        return Err(call.refuse("x must be [n, c, h, w]"));
    };
    call.require(0 < height && 0 < width, "the last two axes must have an element")?;
    let count = |axis, len| windows.count(axis, len).map_err(|rule| call.refuse(rule));
    out.set(dtype, &[n, c, count(0, height)?, count(1, width)?]);
    Ok(())
}

/// One window, as seen from its chunk of planes.
struct Window {
    /// The place of its result.
    place: usize,
    /// Where the plane begins.
    plane: usize,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Window {
    /// The window's part of each row, as ranges of the chunk.
    fn rows(&self) -> impl Iterator<Item = Range<usize>> {
        self.rows.clone().map(|row| {
            let start = self.plane + row * self.width;
            start + self.columns.start..start + self.columns.end
        })
    }
}

/// The planes of an input that is not empty, cut into chunks whose length is given by their size alone.
#[derive(Debug, Clone, Copy)]
struct Planes<'a, W> {
    windows: &'a W,
    height: usize,
    width: usize,
    down: usize,
    across: usize,
    /// Planes in a chunk.
    count: usize,
}

impl<'a, W: Windows> Planes<'a, W> {
    fn new(windows: &'a W, x: &Meta) -> Self {
        /// Elements that are worth a thread's while.
        const CHUNK: usize = 1 << 14;
        let (height, width) = (x.shape[2], x.shape[3]);
        let [down, across] =
            [(0, height), (1, width)].map(|(axis, len)| windows.count(axis, len).unwrap_or(1));
        let count = (CHUNK / (height * width)).max(1);
        Self { windows, height, width, down, across, count }
    }

    /// Elements of a chunk of the input.
    fn inputs(&self) -> usize {
        self.count * self.height * self.width
    }

    /// Elements of a chunk of the result.
    fn outputs(&self) -> usize {
        self.count * self.down * self.across
    }

    /// Visits all windows of a chunk with that many results.
    fn each(&self, outputs: usize, mut visit: impl FnMut(&Window)) {
        for plane in 0..outputs / (self.down * self.across) {
            for i in 0..self.down {
                let rows = self.windows.span(0, i, self.height);
                for j in 0..self.across {
                    visit(&Window {
                        place: (plane * self.down + i) * self.across + j,
                        plane: plane * self.height * self.width,
                        width: self.width,
                        rows: rows.clone(),
                        columns: self.windows.span(1, j, self.width),
                    });
                }
            }
        }
    }
}

fn chunk<T>(data: &[T], index: usize, len: usize) -> &[T] {
    let rest = &data[index * len..];
    &rest[..len.min(rest.len())]
}

/// Computes each window's result from a chunk of the input.
fn forward<T: Real, W: Windows + Sync>(
    windows: &W,
    cx: Forward<'_, T>,
    result: impl Fn(&[T], &Window) -> T + Sync + Send,
) {
    let (x, y) = (&cx.inputs[0], cx.out.floats);
    if y.is_empty() {
        return;
    }
    let planes = Planes::new(windows, x.meta);
    cx.threads.for_each_chunk(y, planes.outputs(), |index, y| {
        let x = chunk(x.floats, index, planes.inputs());
        planes.each(y.len(), |window| y[window.place] = result(x, window));
    });
}

/// Adds each window's share in the gradient: `add` is handed a chunk's part of it, those of the input, of the
/// result and of its gradient, and a window.
fn backward<T: Real, W: Windows + Sync>(
    windows: &W,
    chain: &Chain<'_, T>,
    to: Target<'_, T>,
    add: impl Fn(&mut [T], [&[T]; 3], &Window) + Sync + Send,
) {
    if to.mode == Write::Set {
        to.dst.fill(T::ZERO);
    }
    if to.dst.is_empty() {
        return;
    }
    let planes = Planes::new(windows, chain.inputs[0].meta);
    chain.threads.for_each_chunk(to.dst, planes.inputs(), |index, dst| {
        let x = chunk(chain.inputs[0].floats, index, planes.inputs());
        let [y, g] = [chain.output, chain.grad].map(|data| chunk(data, index, planes.outputs()));
        planes.each(g.len(), |window| add(dst, [x, y, g], window));
    });
}

/// NaN counts as greatest; of two, the one that was there.
#[inline(always)]
pub(super) fn is_greater<T: Real>(x: T, than: T) -> bool {
    (than < x) | (is_nan(x) & !is_nan(than))
}

#[inline(always)]
pub(super) fn is_nan<T: Real>(x: T) -> bool {
    // Without branches, for loops over vectors.
    !((x < T::ZERO) | (T::ZERO <= x))
}

impl Operation for MaxPool2d {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        infer(&self.0, call, out)
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        if Squares::fit(&self.0, cx.inputs[0].meta) {
            Squares::of(cx.inputs[0].meta).greatest(cx.inputs[0].floats, cx.out.floats, cx.threads);
            return Ok(());
        }
        forward(&self.0, cx, |x, window| {
            let mut best = T::from_f64(f64::NEG_INFINITY);
            for row in window.rows() {
                for &x in &x[row] {
                    best = if is_greater(x, best) { x } else { best };
                }
            }
            best
        });
        Ok(())
    }

    fn stops_gradient(&self) -> bool {
        true
    }

    /// Each window's gradient goes to the first of its elements that equals the result: behind a ReLU to none where that
    /// is 0.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let x = &chain.inputs[0];
        if Squares::fit(&self.0, x.meta) {
            let from = [x.floats, chain.output, chain.grad];
            let is_stopped = chain.is_rectified;
            return Squares::of(x.meta).hand_back(from, is_stopped, to, chain.threads);
        }
        backward(&self.0, chain, to, |dst, [x, y, g], window| {
            let y = y[window.place];
            if chain.is_rectified && y <= T::ZERO {
                return;
            }
            let is_it = |&at: &usize| x[at] == y || is_nan(y) && is_nan(x[at]);
            if let Some(at) = window.rows().flatten().find(is_it) {
                dst[at] += g[window.place];
            }
        });
    }
}

fn mean<T: Real>(windows: &(impl Windows + Sync), cx: Forward<'_, T>) {
    forward(windows, cx, |x, window| {
        let mut total = 0.0;
        for row in window.rows() {
            for x in &x[row] {
                total += x.to_f64();
            }
        }
        T::from_f64(total / windows.divisor(&window.rows, &window.columns))
    });
}

/// Each element of a window receives the same share.
fn spread<T: Real>(windows: &(impl Windows + Sync), chain: &Chain<'_, T>, to: Target<'_, T>) {
    backward(windows, chain, to, |dst, [_, _, g], window| {
        let divisor = windows.divisor(&window.rows, &window.columns);
        let share = T::from_f64(g[window.place].to_f64() / divisor);
        for row in window.rows() {
            dst[row].iter_mut().for_each(|dst| *dst += share);
        }
    });
}

impl Operation for AvgPool2d {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        infer(&self.0, call, out)
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        mean(&self.0, cx);
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        spread(&self.0, chain, to);
    }
}

impl Operation for AdaptiveAvgPool2d {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        infer(self, call, out)
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        mean(self, cx);
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        spread(self, chain, to);
    }
}
