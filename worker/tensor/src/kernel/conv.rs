//! Convolution as matrix products over patches.

use std::cell::RefCell;

use super::{
    Bias, Epilogue, Matrix, MatrixMut, Product, Scratch, Threads, Write, gemm::Activation,
};
use crate::real::Real;

/// Sizes of a convolution. Tensors are `[batch, channels, height, width]`, weights
/// `[out, in / groups, kernel height, kernel width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConvShape {
    pub(crate) batch: usize,
    pub(crate) in_channels: usize,
    pub(crate) in_size: [usize; 2],
    pub(crate) out_channels: usize,
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) groups: usize,
}

impl ConvShape {
    /// Height and width of the result; `None` if the window is larger than the padded input or a size is out
    /// of range.
    pub(crate) fn out_size(&self) -> Option<[usize; 2]> {
        let axis = |i: usize| {
            let padded = self.in_size[i].checked_add(self.padding[i].checked_mul(2)?)?;
            let reach =
                self.kernel[i].checked_sub(1)?.checked_mul(self.dilation[i])?.checked_add(1)?;
            Some(padded.checked_sub(reach)? / self.stride[i] + 1)
        };
        Some([axis(0)?, axis(1)?])
    }
}

/// The convolution, over `batch` images.
pub(crate) fn forward<T: Real>(
    shape: &ConvShape,
    (x, w, bias): (&[T], &[T], Option<&[T]>),
    relu: bool,
    y: &mut [T],
    threads: &Threads,
) {
    let sizes = Sizes::new(shape);
    let (x_len, y_len) = (sizes.in_image, sizes.out_image);
    let activation = if relu { Activation::Relu } else { Activation::Identity };
    threads.for_each_chunk(y, y_len.max(1), |image, y| {
        let x = &x[image * x_len..][..x_len];
        with_patches(&sizes, |patches| {
            for group in 0..shape.groups {
                sizes.unfold(x, group, patches);
                let (w, rows) = sizes.weights_of(w, group);
                let bias = bias.map_or(Bias::None, |b| Bias::PerRow(&b[group * rows..][..rows]));
                let y = &mut y[group * rows * sizes.pixels..][..rows * sizes.pixels];
                let product = Product::new(
                    Matrix::new(w, rows, sizes.depth),
                    Matrix::new(patches, sizes.depth, sizes.pixels),
                );
                let y = MatrixMut::new(y, rows, sizes.pixels);
                Scratch::with_local(|scratch| {
                    product.then(Epilogue { bias, activation }).run(y, &Threads::single(), scratch);
                });
            }
        });
    });
}

/// Gradient of the input.
pub(crate) fn gradient_of_input<T: Real>(
    shape: &ConvShape,
    (g, w): (&[T], &[T]),
    mode: Write,
    dx: &mut [T],
    threads: &Threads,
) {
    let sizes = Sizes::new(shape);
    let (x_len, y_len) = (sizes.in_image, sizes.out_image);
    threads.for_each_chunk(dx, x_len.max(1), |image, dx| {
        if mode == Write::Set {
            dx.fill(T::ZERO);
        }
        let g = &g[image * y_len..][..y_len];
        with_patches(&sizes, |patches| {
            for group in 0..shape.groups {
                let (w, rows) = sizes.weights_of(w, group);
                let g = &g[group * rows * sizes.pixels..][..rows * sizes.pixels];
                let product = Product::new(
                    Matrix::new(w, rows, sizes.depth).transposed(),
                    Matrix::new(g, rows, sizes.pixels),
                );
                let to = MatrixMut::new(patches, sizes.depth, sizes.pixels);
                Scratch::with_local(|scratch| product.run(to, &Threads::single(), scratch));
                sizes.fold(patches, group, dx);
            }
        });
    });
}

/// Gradient of the weights: images one after the other.
pub(crate) fn gradient_of_weight<T: Real>(
    shape: &ConvShape,
    (x, g): (&[T], &[T]),
    mode: Write,
    dw: &mut [T],
    threads: &Threads,
) {
    let sizes = Sizes::new(shape);
    let (x_len, y_len) = (sizes.in_image, sizes.out_image);
    if shape.batch == 0 && mode == Write::Set {
        dw.fill(T::ZERO);
    }
    with_patches(&sizes, |patches| {
        for image in 0..shape.batch {
            let x = &x[image * x_len..][..x_len];
            let g = &g[image * y_len..][..y_len];
            let mode = if image == 0 { mode } else { Write::Add };
            for group in 0..shape.groups {
                sizes.unfold(x, group, patches);
                let rows = sizes.rows;
                let g = &g[group * rows * sizes.pixels..][..rows * sizes.pixels];
                let dw = &mut dw[group * rows * sizes.depth..][..rows * sizes.depth];
                let product = Product::new(
                    Matrix::new(g, rows, sizes.pixels),
                    Matrix::new(patches, sizes.depth, sizes.pixels).transposed(),
                );
                let to = MatrixMut::new(dw, rows, sizes.depth);
                Scratch::with_local(|scratch| product.mode(mode).run(to, threads, scratch));
            }
        }
    });
}

/// Lengths that follow from a shape.
struct Sizes {
    shape: ConvShape,
    out: [usize; 2],
    in_image: usize,
    out_image: usize,
    /// Of one group.
    channels: usize,
    rows: usize,
    /// Elements under one window.
    depth: usize,
    pixels: usize,
}

impl Sizes {
    fn new(shape: &ConvShape) -> Self {
        let out = shape.out_size().unwrap_or([0, 0]);
        let channels = shape.in_channels / shape.groups;
        let pixels = out[0] * out[1];
        Self {
            shape: *shape,
            out,
            in_image: shape.in_channels * shape.in_size[0] * shape.in_size[1],
            out_image: shape.out_channels * pixels,
            channels,
            rows: shape.out_channels / shape.groups,
            depth: channels * shape.kernel[0] * shape.kernel[1],
            pixels,
        }
    }

    fn weights_of<'a, T>(&self, w: &'a [T], group: usize) -> (&'a [T], usize) {
        (&w[group * self.rows * self.depth..][..self.rows * self.depth], self.rows)
    }

    /// Calls `row` for each row of patches and of the result: (first element in the row of patches, channel, the
    /// input's row if it has one, kernel column).
    fn each(&self, mut row: impl FnMut(usize, usize, Option<usize>, usize)) {
        let [kernel_height, kernel_width] = self.shape.kernel;
        let mut at = 0;
        for channel in 0..self.channels {
            for ky in 0..kernel_height {
                for kx in 0..kernel_width {
                    for oy in 0..self.out[0] {
                        let y = oy * self.shape.stride[0] + ky * self.shape.dilation[0];
                        let y = y.checked_sub(self.shape.padding[0]);
                        row(at, channel, y.filter(|&y| y < self.shape.in_size[0]), kx);
                        at += self.out[1];
                    }
                }
            }
        }
    }

    /// The columns of the result whose window column `kx` lies in the input, and the input's column of the first.
    fn inside(&self, kx: usize) -> (std::ops::Range<usize>, usize) {
        let (stride, padding) = (self.shape.stride[1], self.shape.padding[1]);
        let offset = kx * self.shape.dilation[1];
        let first = padding.saturating_sub(offset).div_ceil(stride);
        let end = (self.shape.in_size[1] + padding).saturating_sub(offset).div_ceil(stride);
        let end = end.min(self.out[1]);
        if end <= first { (0..0, 0) } else { (first..end, first * stride + offset - padding) }
    }

    fn unfold<T: Real>(&self, x: &[T], group: usize, patches: &mut [T]) {
        let [height, width] = self.shape.in_size;
        let x = &x[group * self.channels * height * width..];
        let stride = self.shape.stride[1];
        self.each(|at, channel, y, kx| {
            let to = &mut patches[at..at + self.out[1]];
            let (inside, column) = self.inside(kx);
            let Some(y) = y.filter(|_| !inside.is_empty()) else { return to.fill(T::ZERO) };
            let from = &x[(channel * height + y) * width + column..];
            to[..inside.start].fill(T::ZERO);
            to[inside.end..].fill(T::ZERO);
            let to = &mut to[inside];
            if stride == 1 {
                to.copy_from_slice(&from[..to.len()]);
            } else {
                to.iter_mut().enumerate().for_each(|(i, to)| *to = from[i * stride]);
            }
        });
    }

    fn fold<T: Real>(&self, patches: &[T], group: usize, dx: &mut [T]) {
        let [height, width] = self.shape.in_size;
        let dx = &mut dx[group * self.channels * height * width..];
        let stride = self.shape.stride[1];
        self.each(|at, channel, y, kx| {
            let (inside, column) = self.inside(kx);
            let Some(y) = y.filter(|_| !inside.is_empty()) else { return };
            let to = &mut dx[(channel * height + y) * width + column..];
            let from = &patches[at + inside.start..at + inside.end];
            from.iter().enumerate().for_each(|(i, from)| to[i * stride] += *from);
        });
    }
}

/// Lends memory for the patches of one group of one image, the calling thread's own: it grows to what the largest
/// convolution asked for.
fn with_patches<T: Real>(sizes: &Sizes, work: impl FnOnce(&mut [T])) {
    thread_local! {
        static PATCHES: RefCell<Scratch> = RefCell::new(Scratch::new());
    }
    let lend = |scratch: &mut Scratch| {
        work(scratch.parts(1)[0].lend(sizes.depth * sizes.pixels, 0).0);
    };
    PATCHES.with(|patches| match patches.try_borrow_mut() {
        Ok(mut scratch) => lend(&mut scratch),
        Err(_) => lend(&mut Scratch::new()),
    });
}
