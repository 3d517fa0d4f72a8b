//! Convolution over images.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Call, Chain, Forward, Operation, Target, relu};
use crate::{
    error::OpError,
    kernel::{
        Bias, Epilogue, Scratch, Sums, Threads, Write,
        conv::{self, ConvShape, With},
        gemm::Activation,
    },
    meta::Meta,
    real::Real,
};

/// Settings of a convolution; pairs are (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv2d {
    /// Pixels from window to window, at least 1.
    pub stride: [usize; 2],
    /// Zeros at each edge.
    pub padding: [usize; 2],
    /// Pixels from tap to tap, at least 1.
    pub dilation: [usize; 2],
    /// Parts that channels are cut into, each convolved by itself.
    pub groups: usize,
    /// Whether `max(y, 0)` is put out.
    pub relu: bool,
}

impl Default for Conv2d {
    fn default() -> Self {
        Self { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1, relu: false }
    }
}

impl Conv2d {
    fn shape(&self, x: &Meta, w: &Meta) -> Option<ConvShape> {
        let (
            &[batch, in_channels, in_height, in_width],
            &[out_channels, _, kernel_height, kernel_width],
        ) = (x.shape.as_slice(), w.shape.as_slice())
        else {
            return None;
        };
        Some(ConvShape {
            batch,
            in_channels,
            in_height,
            in_width,
            out_channels,
            kernel: [kernel_height, kernel_width],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
        })
    }
}

impl Conv2d {
    /// Floats that forward and backward take beside the tape, for what they lay out anew. Each thread keeps them from
    /// one convolution to the next. 0 for shapes that do not fit.
    pub fn scratch_len(&self, x: &Meta, w: &Meta) -> usize {
        let shape = self.shape(x, w).filter(|shape| shape.fault().is_none());
        shape.map_or(0, |shape| conv::scratch_len::<f32>(&shape))
    }
}

impl Operation for Conv2d {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        let (x, w) = (call.inputs[0], call.inputs[1]);
        let Some(shape) = self.shape(x, w) else {
            return Err(call.refuse("x must be [n, c, h, w] and w [o, c / groups, kh, kw]"));
        };
        if let Some(fault) = shape.fault() {
            return Err(call.refuse(fault));
        }
        call.require(
            shape.in_channels / self.groups == w.shape[1],
            "the channels of x must be groups times the second axis of w",
        )?;
        if let Some(b) = call.inputs.get(2) {
            call.require(b.shape == [shape.out_channels], "b must be as long as w's first axis")?;
        }
        out.set(dtype, &[shape.batch, shape.out_channels, shape.out_height(), shape.out_width()]);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let [x, w] = [&cx.inputs[0], &cx.inputs[1]];
        if let Some(shape) = self.shape(x.meta, w.meta) {
            let bias = cx.inputs.get(2).map_or(Bias::None, |b| Bias::PerRow(b.floats));
            let activation = if self.relu { Activation::Relu } else { Activation::Identity };
            let epilogue = Epilogue { bias, activation };
            Scratch::with_local(|scratch| {
                let with = With::new(cx.threads, scratch);
                conv::forward(&shape, x.floats, w.floats, cx.out.floats, epilogue, with);
            });
        }
        Ok(())
    }

    /// To that before the ReLU.
    fn rewrite_gradient<T: Real>(&self, chain: &Chain<'_, T>, grad: &mut [T]) {
        if self.relu {
            relu::stop_gradient(grad, chain.output, chain.threads);
        }
    }

    fn is_rectified(&self) -> bool {
        self.relu
    }

    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let [x, w] = [&chain.inputs[0], &chain.inputs[1]];
        let Some(shape) = self.shape(x.meta, w.meta) else { return };
        let g = chain.grad;
        match which {
            0 => Scratch::with_local(|scratch| {
                let with = With::new(chain.threads, scratch);
                conv::gradient_of_input(&shape, g, w.floats, to.dst, to.mode, with);
            }),
            1 => Scratch::with_local(|scratch| {
                let with = With::new(chain.threads, scratch);
                conv::gradient_of_weight(&shape, x.floats, g, to.dst, to.mode, with);
            }),
            _ => gradient_of_bias(&shape, g, to, chain.threads),
        }
    }
}

/// Sums the gradient `[n, c, h, w]` over all axes but the second, image by image.
fn gradient_of_bias<T: Real>(shape: &ConvShape, g: &[T], to: Target<'_, T>, threads: &Threads) {
    /// Channels that a thread takes at once.
    const CHANNELS: usize = 4;
    let Target { dst, mode } = to;
    let pixels = g.len() / (shape.batch * shape.out_channels).max(1);
    threads.for_each_chunk(dst, CHANNELS, |index, dst| {
        for (place, dst) in dst.iter_mut().enumerate() {
            let mut sums = Sums::new();
            for image in 0..shape.batch {
                let run = image * shape.out_channels + index * CHANNELS + place;
                sums.add([&g[run * pixels..][..pixels]], |[g]| [g]);
            }
            let sum = T::from_f64(sums.totals()[0]);
            *dst = if mode == Write::Set { sum } else { *dst + sum };
        }
    });
}
