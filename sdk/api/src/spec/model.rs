//! The model of a job: an architecture with its sizes, and the weights to begin with.
//!
//! Sizes count elements and are 1 or more; `spec/check` has the limits. Every model reads its tensors from the
//! batch by name and puts out `logits`.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::layers::LayersSpec;
use super::tagged::Table;

/// What is trained.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ModelSpec {
    /// The architecture, named by `arch`, and its sizes.
    #[serde(flatten)]
    pub arch: ArchSpec,
    /// Weights to begin with: the digest of a `safetensors` file (in a job file also a path), with the names and
    /// shapes of this model's state dict. Absent: weights are drawn from `train.seed`.
    #[serde(default)]
    pub init_from: Option<String>,
    /// Whether every tensor of the model has to be in `init_from`, and no other. If not, tensors that the file lacks
    /// are drawn, and those that the model lacks are left out. A tensor of another shape is refused either way.
    #[serde(default = "default_true")]
    pub init_strict: bool,
}

/// The architecture.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[serde(tag = "arch", rename_all = "snake_case")]
pub enum ArchSpec {
    /// Linear layers with an activation between them. Input `x`: f32 `[batch, inputs]`; output `[batch, classes]`.
    Mlp(MlpSpec),
    /// A list of layers, one after the other. Parameters are named as in `torch.nn.Sequential`: `0.weight`.
    Layers(LayersSpec),
    /// ResNet-18, two basic blocks in each stage. Input `x`: f32 `[batch, channels, height, width]`; names of torchvision.
    Resnet18(ResnetSpec),
    /// ResNet-34, basic blocks.
    Resnet34(ResnetSpec),
    /// ResNet-50, bottleneck blocks with the stride at the 3×3 convolution.
    Resnet50(ResnetSpec),
    /// GPT-2 with its language head. Input `input_ids`: i64 `[batch, time]`; output `[batch, time, vocab_size]`;
    /// names of Hugging Face's `GPT2LMHeadModel`.
    Gpt2(Gpt2Spec),
    /// BERT with a classification head. Input `input_ids`: i64 `[batch, time]`, and, if the batch has them,
    /// `attention_mask` and `token_type_ids`; output `[batch, classes]`; names of Hugging Face's
    /// `BertForSequenceClassification`.
    Bert(BertSpec),
    /// Vision transformer. Input `x`: f32 `[batch, in_channels, image_size, image_size]`; names of torchvision.
    Vit(VitSpec),
}

/// Names of architectures, in the order of [`ArchSpec`].
pub const ARCHES: [&str; 8] =
    ["mlp", "layers", "resnet18", "resnet34", "resnet50", "gpt2", "bert", "vit"];

impl ArchSpec {
    /// Its name in a job, one of [`ARCHES`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mlp(_) => "mlp",
            Self::Layers(_) => "layers",
            Self::Resnet18(_) => "resnet18",
            Self::Resnet34(_) => "resnet34",
            Self::Resnet50(_) => "resnet50",
            Self::Gpt2(_) => "gpt2",
            Self::Bert(_) => "bert",
            Self::Vit(_) => "vit",
        }
    }
}

impl<'de> Deserialize<'de> for ModelSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Table::read(deserializer)?;
        let arch: String = table.tag("arch")?;
        let init_from = table.take("init_from")?;
        let init_strict = table.take("init_strict")?.unwrap_or_else(default_true);
        let arch = match arch.as_str() {
            "mlp" => ArchSpec::Mlp(table.rest()?),
            "layers" => ArchSpec::Layers(table.rest()?),
            "resnet18" => ArchSpec::Resnet18(table.rest()?),
            "resnet34" => ArchSpec::Resnet34(table.rest()?),
            "resnet50" => ArchSpec::Resnet50(table.rest()?),
            "gpt2" => ArchSpec::Gpt2(table.rest()?),
            "bert" => ArchSpec::Bert(table.rest()?),
            "vit" => ArchSpec::Vit(table.rest()?),
            other => return Err(D::Error::unknown_variant(other, &ARCHES)),
        };
        Ok(Self { arch, init_from, init_strict })
    }
}

impl From<ArchSpec> for ModelSpec {
    /// With weights drawn from the seed.
    fn from(arch: ArchSpec) -> Self {
        Self { arch, init_from: None, init_strict: true }
    }
}

/// The function between layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// max(x, 0).
    Relu,
    /// x·Φ(x), exact (by erf).
    Gelu,
    /// GELU by tanh, as GPT-2 has it.
    GeluNew,
    /// x·sigmoid(x).
    Silu,
    /// Hyperbolic tangent.
    Tanh,
}

/// Linear layers with an activation between them. Parameters `layers.0.weight`, `layers.0.bias`, …
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MlpSpec {
    /// Length of one sample.
    pub inputs: u32,
    /// Width of each hidden layer; may be empty.
    #[serde(default)]
    pub hidden: Vec<u32>,
    /// Length of the output.
    pub classes: u32,
    /// Between layers, not after the last.
    #[serde(default = "default_relu")]
    pub activation: Activation,
}

/// A residual network for images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ResnetSpec {
    /// One sample: channels, height, width. The network has no size of its own for height and width; they say
    /// what the check at submit and the estimate of memory count with.
    pub input: [u32; 3],
    /// Length of the output.
    pub classes: u32,
    /// What stands before the first stage.
    #[serde(default = "default_stem")]
    pub stem: ResnetStem,
}

/// What stands before the first stage of a ResNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResnetStem {
    /// 7×7 convolution with stride 2, 3×3 max pool with stride 2: for images of 224 pixels.
    Imagenet,
    /// 3×3 convolution with stride 1, no pool: for images of 32 pixels.
    Small,
}

/// GPT-2, in Hugging Face's terms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Gpt2Spec {
    /// Number of tokens.
    pub vocab_size: u32,
    /// Longest text, tokens.
    pub n_positions: u32,
    /// Width.
    pub n_embd: u32,
    /// Blocks.
    pub n_layer: u32,
    /// Attention heads; a divisor of `n_embd`.
    pub n_head: u32,
    /// Width within the feed-forward part. Absent: 4·`n_embd`.
    #[serde(default)]
    pub n_inner: Option<u32>,
    /// Within the feed-forward part.
    #[serde(default = "default_gelu_new")]
    pub activation_function: Activation,
    /// Dropout before each residual sum. Hugging Face's default is 0.1, ours 0.
    #[serde(default)]
    pub resid_pdrop: f64,
    /// Dropout after the embeddings; default 0.
    #[serde(default)]
    pub embd_pdrop: f64,
    /// Dropout of attention probabilities; default 0.
    #[serde(default)]
    pub attn_pdrop: f64,
    /// Added to the variance in layer norms.
    #[serde(default = "default_1e5")]
    pub layer_norm_epsilon: f64,
    /// Whether the head uses the token embedding's weights.
    #[serde(default = "default_true")]
    pub tie_word_embeddings: bool,
}

impl Gpt2Spec {
    /// Width within the feed-forward part, the default filled in.
    pub fn inner(&self) -> u64 {
        self.n_inner.map_or(4 * u64::from(self.n_embd), u64::from)
    }
}

/// BERT, in Hugging Face's terms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BertSpec {
    /// Number of tokens.
    pub vocab_size: u32,
    /// Longest text, tokens.
    #[serde(default = "default_512")]
    pub max_position_embeddings: u32,
    /// Number of segment kinds.
    #[serde(default = "default_2")]
    pub type_vocab_size: u32,
    /// Width.
    pub hidden_size: u32,
    /// Blocks.
    pub num_hidden_layers: u32,
    /// Attention heads; a divisor of `hidden_size`.
    pub num_attention_heads: u32,
    /// Width within the feed-forward part.
    pub intermediate_size: u32,
    /// Within the feed-forward part.
    #[serde(default = "default_gelu")]
    pub hidden_act: Activation,
    /// Dropout after embeddings, before each residual sum, and before the classifier. Hugging Face's default is 0.1, ours 0.
    #[serde(default)]
    pub hidden_dropout_prob: f64,
    /// Dropout of attention probabilities; default 0.
    #[serde(default)]
    pub attention_probs_dropout_prob: f64,
    /// Added to the variance in layer norms.
    #[serde(default = "default_1e12")]
    pub layer_norm_eps: f64,
    /// Length of the output.
    pub classes: u32,
}

/// Vision transformer, in torchvision's terms. Exact GELU, layer norms with eps 1e-6.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VitSpec {
    /// Height and width of an image, pixels.
    pub image_size: u32,
    /// Height and width of a patch, pixels; a divisor of `image_size`.
    pub patch_size: u32,
    /// Channels of an image.
    #[serde(default = "default_3")]
    pub in_channels: u32,
    /// Width.
    pub hidden_dim: u32,
    /// Blocks.
    pub num_layers: u32,
    /// Attention heads; a divisor of `hidden_dim`.
    pub num_heads: u32,
    /// Width within the feed-forward part.
    pub mlp_dim: u32,
    /// Length of the output.
    pub classes: u32,
    /// Dropout after the embeddings, after attention and within the feed-forward part.
    #[serde(default)]
    pub dropout: f64,
    /// Dropout of attention probabilities.
    #[serde(default)]
    pub attention_dropout: f64,
}

pub(super) fn default_true() -> bool {
    true
}
fn default_relu() -> Activation {
    Activation::Relu
}
fn default_gelu() -> Activation {
    Activation::Gelu
}
fn default_gelu_new() -> Activation {
    Activation::GeluNew
}
fn default_stem() -> ResnetStem {
    ResnetStem::Imagenet
}
pub(super) fn default_1e5() -> f64 {
    1e-5
}
fn default_1e12() -> f64 {
    1e-12
}
fn default_2() -> u32 {
    2
}
fn default_3() -> u32 {
    3
}
fn default_512() -> u32 {
    512
}
