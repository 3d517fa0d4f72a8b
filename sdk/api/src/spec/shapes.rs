//! Shapes and parameters of a list of layers, without any numbers: arithmetic on lengths, saturating.
//!
//! Shapes here are of one sample: the batch axis is left out.

use super::layers::{Conv2dSpec, LayerSpec, LayersSpec};

/// Why a layer does not fit what comes into it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layers[{index}].{field}: {message}")]
pub struct LayerMisfit {
    /// Position in the list.
    pub index: usize,
    /// Path behind `layers[index]`: `conv2d.kernel`, or the layer's name.
    pub field: &'static str,
    /// What was expected there, what was found.
    pub message: String,
}

impl LayersSpec {
    /// The input's shape, then that behind each layer.
    ///
    /// # Errors
    /// The first layer that does not fit.
    pub fn shapes(&self) -> Result<Vec<Vec<u64>>, LayerMisfit> {
        let mut shape: Vec<u64> = self.input.iter().copied().map(u64::from).collect();
        let mut shapes = vec![shape.clone()];
        for (index, layer) in self.layers.iter().enumerate() {
            shape = layer.output(&shape).map_err(|Misfit(field, message)| LayerMisfit {
                index,
                field,
                message,
            })?;
            shapes.push(shape.clone());
        }
        Ok(shapes)
    }

    /// Trainable numbers. A layer that does not fit, and what is behind it, counts as none.
    pub(super) fn parameter_count(&self) -> u64 {
        let shapes = self.shapes().unwrap_or_default();
        let layers = self.layers.iter().zip(&shapes);
        layers.fold(0, |sum: u64, (layer, input)| sum.saturating_add(layer.parameter_count(input)))
    }
}

/// Field and message.
struct Misfit(&'static str, String);

impl LayerSpec {
    fn output(&self, input: &[u64]) -> Result<Vec<u64>, Misfit> {
        match self {
            Self::Linear(it) => match input {
                [before @ .., _] => Ok([before, &[it.out.into()]].concat()),
                [] => Err(Misfit("linear", "expected an input of 1 axis or more".to_owned())),
            },
            Self::Conv2d(it) => it.output(input),
            Self::MaxPool2d(it) => {
                let names = ["max_pool2d", "max_pool2d.kernel", "max_pool2d.padding"];
                pool(names, input, it.kernel, it.stride, it.padding)
            }
            Self::AvgPool2d(it) => {
                let names = ["avg_pool2d", "avg_pool2d.kernel", "avg_pool2d.padding"];
                pool(names, input, it.kernel, it.stride, it.padding)
            }
            Self::AdaptiveAvgPool2d(it) => {
                let [channels, _, _] = image("adaptive_avg_pool2d", input)?;
                Ok(vec![channels, it.size.into(), it.size.into()])
            }
            Self::Flatten => Ok(vec![product(input)]),
            Self::BatchNorm(_)
            | Self::LayerNorm(_)
            | Self::RmsNorm(_)
            | Self::Dropout(_)
            | Self::Relu
            | Self::Gelu
            | Self::GeluNew
            | Self::Silu
            | Self::Tanh
            | Self::Sigmoid => Ok(input.to_vec()),
        }
    }

    fn parameter_count(&self, input: &[u64]) -> u64 {
        let (first, last) =
            (input.first().copied().unwrap_or(0), input.last().copied().unwrap_or(0));
        match self {
            Self::Linear(it) => linear_count(last, it.out.into(), it.bias),
            Self::Conv2d(it) => {
                let inputs = first / u64::from(it.groups.max(1));
                let taps = product(&[inputs, it.kernel.into(), it.kernel.into()]);
                linear_count(taps, it.out.into(), it.bias)
            }
            Self::BatchNorm(_) => first.saturating_mul(2),
            Self::LayerNorm(_) => last.saturating_mul(2),
            Self::RmsNorm(_) => last,
            Self::MaxPool2d(_)
            | Self::AvgPool2d(_)
            | Self::AdaptiveAvgPool2d(_)
            | Self::Dropout(_)
            | Self::Flatten
            | Self::Relu
            | Self::Gelu
            | Self::GeluNew
            | Self::Silu
            | Self::Tanh
            | Self::Sigmoid => 0,
        }
    }
}

impl Conv2dSpec {
    fn output(&self, input: &[u64]) -> Result<Vec<u64>, Misfit> {
        let [channels, height, width] = image("conv2d", input)?;
        let groups = u64::from(self.groups.max(1));
        if !channels.is_multiple_of(groups) {
            let message =
                format!("expected a divisor of the input's {channels} channels, got {groups}");
            return Err(Misfit("conv2d.groups", message));
        }
        if !u64::from(self.out).is_multiple_of(groups) {
            let message = format!("expected a multiple of groups = {groups}, got {}", self.out);
            return Err(Misfit("conv2d.out", message));
        }
        let span = span(self.kernel, self.dilation);
        let side = |length| windows("conv2d.kernel", length, span, self.stride, self.padding);
        Ok(vec![self.out.into(), side(height)?, side(width)?])
    }
}

fn pool(
    [layer, kernel_field, padding_field]: [&'static str; 3],
    input: &[u64],
    kernel: u32,
    stride: Option<u32>,
    padding: u32,
) -> Result<Vec<u64>, Misfit> {
    let [channels, height, width] = image(layer, input)?;
    if kernel / 2 < padding {
        let message = format!("expected at most half of kernel = {kernel}, got {padding}");
        return Err(Misfit(padding_field, message));
    }
    let stride = stride.unwrap_or(kernel);
    let side = |length| windows(kernel_field, length, kernel.into(), stride, padding);
    Ok(vec![channels, side(height)?, side(width)?])
}

fn image(field: &'static str, input: &[u64]) -> Result<[u64; 3], Misfit> {
    input.try_into().map_err(|_| {
        let message = format!("expected an input [channels, height, width], got {input:?}");
        Misfit(field, message)
    })
}

/// Pixels from the first tap to the last, both included.
fn span(kernel: u32, dilation: u32) -> u64 {
    u64::from(kernel).saturating_sub(1).saturating_mul(dilation.into()).saturating_add(1)
}

/// How many windows fit: floor((length + 2·padding − span) / stride) + 1.
fn windows(
    field: &'static str,
    length: u64,
    span: u64,
    stride: u32,
    padding: u32,
) -> Result<u64, Misfit> {
    let padded = length.saturating_add(2 * u64::from(padding));
    match padded.checked_sub(span) {
        Some(room) => Ok(room / u64::from(stride.max(1)) + 1),
        None => {
            let message = format!(
                "expected a window of at most {padded} pixels (the input's {length} and the padding), got one of {span}"
            );
            Err(Misfit(field, message))
        }
    }
}

pub(super) fn product(lengths: &[u64]) -> u64 {
    lengths.iter().fold(1, |product, &length| product.saturating_mul(length))
}

/// `[out, in]` and perhaps `[out]`.
pub(super) fn linear_count(inputs: u64, out: u64, bias: bool) -> u64 {
    inputs.saturating_add(bias.into()).saturating_mul(out)
}
