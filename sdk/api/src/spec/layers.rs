//! A model as a list of layers.
//!
//! A layer is a table with one field, `{ conv2d = { out = 32, kernel = 3 } }`. One that needs no settings, or whose
//! settings all have defaults, may also be its bare name: `"relu"`, `"batch_norm"`.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::model::{default_1e5, default_true};

/// Layers, one after the other. Input `x`: f32 `[batch, …input]`; output: whatever the last layer puts out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayersSpec {
    /// Shape of one sample: `[features]` or `[channels, height, width]`; 1 to 3 axes.
    pub input: Vec<u32>,
    /// In order of use; 1 to 512.
    pub layers: Vec<LayerSpec>,
}

/// One layer. The batch axis is left out of every shape here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum LayerSpec {
    /// Over the last axis: `[…, in]` to `[…, out]`. Parameters `weight` `[out, in]`, `bias` `[out]`.
    Linear(LinearSpec),
    /// `[in, h, w]` to `[out, h', w']`. Parameters `weight` `[out, in / groups, kernel, kernel]`, `bias` `[out]`.
    Conv2d(Conv2dSpec),
    /// The largest value under each window. Padding never wins.
    MaxPool2d(MaxPool2dSpec),
    /// The mean of each window, zeros of the padding included.
    AvgPool2d(AvgPool2dSpec),
    /// The mean of each of `size` × `size` parts.
    AdaptiveAvgPool2d(AdaptivePoolSpec),
    /// Over the first axis, with batch statistics in training and running ones in evaluation. Parameters `weight`,
    /// `bias`; buffers `running_mean`, `running_var`, `num_batches_tracked`.
    BatchNorm(BatchNormSpec),
    /// Over the last axis. Parameters `weight`, `bias`.
    LayerNorm(LayerNormSpec),
    /// Over the last axis, without a mean. Parameter `weight`.
    RmsNorm(RmsNormSpec),
    /// Each value is zeroed with probability `p` in training, the others are divided by 1 − p.
    Dropout(DropoutSpec),
    /// Every axis into one.
    Flatten,
    /// max(x, 0).
    Relu,
    /// Exact GELU.
    Gelu,
    /// GELU by tanh.
    GeluNew,
    /// x·sigmoid(x).
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
}

impl Serialize for LayerSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for LayerSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LayerVisitor)
    }
}

struct LayerVisitor;

impl<'de> Visitor<'de> for LayerVisitor {
    type Value = LayerSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a layer's name, or a table with one layer")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<LayerSpec, E> {
        if let Ok(layer) = LayerSpec::deserialize(StrDeserializer::<E>::new(name)) {
            return Ok(layer);
        }
        LayerSpec::deserialize(serde_json::json!({ name: {} })).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LayerSpec, A::Error> {
        LayerSpec::deserialize(MapAccessDeserializer::new(map))
    }
}

/// A linear layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinearSpec {
    /// Length of the output.
    pub out: u32,
    /// Whether a bias is added.
    #[serde(default = "default_true")]
    pub bias: bool,
}

/// A convolution. Kernel, stride, padding and dilation are the same for both axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Conv2dSpec {
    /// Channels of the output; a multiple of `groups`.
    pub out: u32,
    /// Height and width of the window, pixels.
    pub kernel: u32,
    /// Pixels from window to window.
    #[serde(default = "default_1")]
    pub stride: u32,
    /// Zeros at each edge.
    #[serde(default)]
    pub padding: u32,
    /// Pixels from tap to tap.
    #[serde(default = "default_1")]
    pub dilation: u32,
    /// Parts that channels are cut into, each convolved by itself; divides the input's channels.
    #[serde(default = "default_1")]
    pub groups: u32,
    /// Whether a bias is added.
    #[serde(default = "default_true")]
    pub bias: bool,
}

/// Max pooling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MaxPool2dSpec {
    /// Height and width of the window, pixels.
    pub kernel: u32,
    /// Pixels from window to window. Absent: `kernel`.
    #[serde(default)]
    pub stride: Option<u32>,
    /// At each edge; at most half of `kernel`.
    #[serde(default)]
    pub padding: u32,
}

/// Average pooling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AvgPool2dSpec {
    /// Height and width of the window, pixels.
    pub kernel: u32,
    /// Pixels from window to window. Absent: `kernel`.
    #[serde(default)]
    pub stride: Option<u32>,
    /// Zeros at each edge; at most half of `kernel`.
    #[serde(default)]
    pub padding: u32,
}

/// Adaptive average pooling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptivePoolSpec {
    /// Height and width of the output, pixels.
    pub size: u32,
}

/// Batch norm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchNormSpec {
    /// Added to the variance.
    #[serde(default = "default_1e5")]
    pub eps: f64,
    /// Share of the new batch in the running statistics.
    #[serde(default = "default_momentum")]
    pub momentum: f64,
}

/// Layer norm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerNormSpec {
    /// Added to the variance.
    #[serde(default = "default_1e5")]
    pub eps: f64,
}

/// Root-mean-square norm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RmsNormSpec {
    /// Added to the mean square. The default is PyTorch's: the smallest step of an f32 at 1.
    #[serde(default = "default_rms_eps")]
    pub eps: f64,
}

/// Dropout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DropoutSpec {
    /// 0 ≤ p < 1.
    #[serde(default = "default_p")]
    pub p: f64,
}

fn default_1() -> u32 {
    1
}
fn default_momentum() -> f64 {
    0.1
}
fn default_rms_eps() -> f64 {
    f64::from(f32::EPSILON)
}
fn default_p() -> f64 {
    0.5
}
