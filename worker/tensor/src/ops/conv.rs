//! Convolution over images.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{
        Write,
        conv::{self, ConvShape},
        sum, zip,
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
        let (&[batch, in_channels, height, width], &[out_channels, _, kernel_height, kernel_width]) =
            (x.shape.as_slice(), w.shape.as_slice())
        else {
            return None;
        };
        Some(ConvShape {
            batch,
            in_channels,
            in_size: [height, width],
            out_channels,
            kernel: [kernel_height, kernel_width],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
        })
    }
}

impl Operation for Conv2d {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        let (x, w) = (call.inputs[0], call.inputs[1]);
        let positive = |pair: [usize; 2]| pair.iter().all(|&length| 0 < length);
        call.require(positive(self.stride), "strides must be 1 or more")?;
        call.require(positive(self.dilation), "dilations must be 1 or more")?;
        call.require(0 < self.groups, "there must be one group or more")?;
        let Some(shape) = self.shape(x, w) else {
            return Err(call.refuse("x must be [n, c, h, w] and w [o, c / groups, kh, kw]"));
        };
        let fits = shape.in_channels.is_multiple_of(self.groups)
            && shape.in_channels / self.groups == w.shape[1];
        call.require(fits, "the channels of x must be groups times the second axis of w")?;
        call.require(
            shape.out_channels.is_multiple_of(self.groups),
            "the first axis of w must be a multiple of groups",
        )?;
        if let Some(b) = call.inputs.get(2) {
            call.require(b.shape == [shape.out_channels], "b must be as long as w's first axis")?;
        }
        let Some([height, width]) = shape.out_size() else {
            return Err(
                call.refuse("the window must have an element and fit into the padded input")
            );
        };
        out.set(dtype, &[shape.batch, shape.out_channels, height, width]);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let [x, w] = [&cx.inputs[0], &cx.inputs[1]];
        if let Some(shape) = self.shape(x.meta, w.meta) {
            let bias = cx.inputs.get(2).map(|b| b.floats);
            let from = (x.floats, w.floats, bias);
            conv::forward(&shape, from, self.relu, cx.out.floats, cx.threads);
        }
        Ok(())
    }

    fn prepared_len(&self, _inputs: &[&Meta], out: &Meta) -> usize {
        if self.relu { out.len() } else { 0 }
    }

    /// The gradient before the ReLU.
    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        zip(prepared, Write::Set, [chain.grad, chain.output], |[g, y]| {
            if y <= T::ZERO { T::ZERO } else { g }
        });
    }

    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let [x, w] = [&chain.inputs[0], &chain.inputs[1]];
        let Some(shape) = self.shape(x.meta, w.meta) else { return };
        let g = if self.relu { chain.prepared } else { chain.grad };
        match which {
            0 => conv::gradient_of_input(&shape, (g, w.floats), to.mode, to.dst, chain.threads),
            1 => conv::gradient_of_weight(&shape, (x.floats, g), to.mode, to.dst, chain.threads),
            _ => {
                let pixels = g.len() / (shape.batch * shape.out_channels).max(1);
                let channels = shape.out_channels;
                to.write(|channel| {
                    sum(shape.batch * pixels, |i| {
                        g[((i / pixels) * channels + channel) * pixels + i % pixels]
                    })
                });
            }
        }
    }
}
