//! Ranges of `model`, what its sizes ask of each other, and the total.

use super::{ABOVE_ZERO, Check};
use crate::{
    ArchSpec, BertSpec, Gpt2Spec, LayerSpec, LayersSpec, MlpSpec, ModelSpec, ResnetSpec, VitSpec,
};

/// Most trainable numbers of a model. Far above what a node holds; memory is estimated by the check at submit.
pub const MAX_PARAMETERS: u64 = 1 << 34;

/// Largest length of an axis.
const MAX_LENGTH: u64 = 1 << 20;
/// Largest height or width of an image, pixels.
const MAX_IMAGE: u64 = 1 << 14;
/// Largest kernel, stride, padding or dilation, pixels.
const MAX_WINDOW: u64 = 1 << 10;
/// Most hidden layers of a perceptron.
const MAX_HIDDEN: usize = 64;
/// Most layers of a list.
const MAX_LAYERS: usize = 512;
/// Most blocks of a transformer.
const MAX_BLOCKS: u64 = 1 << 10;
/// Most numbers of one sample behind any layer.
const MAX_SAMPLE: u64 = 1 << 32;

impl Check {
    pub(super) fn model(&mut self, model: &ModelSpec) {
        let before = self.errors.len();
        match &model.arch {
            ArchSpec::Mlp(it) => self.mlp(it),
            ArchSpec::Layers(it) => self.layers(it),
            ArchSpec::Resnet18(it) | ArchSpec::Resnet34(it) | ArchSpec::Resnet50(it) => {
                self.resnet(it);
            }
            ArchSpec::Gpt2(it) => self.gpt2(it),
            ArchSpec::Bert(it) => self.bert(it),
            ArchSpec::Vit(it) => self.vit(it),
        }
        if self.errors.len() == before {
            let count = model.arch.parameter_count();
            self.that(count <= MAX_PARAMETERS, "model", || {
                format!("expected at most {MAX_PARAMETERS} parameters, got {count}")
            });
        }
        if let Some(digest) = &model.init_from {
            self.digest("model.init_from", digest);
        }
    }

    fn length(&mut self, field: &str, value: u32) -> bool {
        self.range(&format!("model.{field}"), value, 1, MAX_LENGTH)
    }

    fn heads(&mut self, [heads_field, width_field]: [&str; 2], heads: u32, width: u32) {
        // Both, so that both are named.
        if self.length(heads_field, heads) & self.length(width_field, width) {
            self.that(width.is_multiple_of(heads), &format!("model.{heads_field}"), || {
                format!("expected a divisor of model.{width_field} = {width}, got {heads}")
            });
        }
    }

    fn dropout(&mut self, field: &str, p: f64) {
        self.share(&format!("model.{field}"), p);
    }

    fn epsilon(&mut self, field: &str, eps: f64) {
        self.number(&format!("model.{field}"), eps, ABOVE_ZERO, 1.0);
    }

    fn mlp(&mut self, spec: &MlpSpec) {
        self.length("inputs", spec.inputs);
        self.length("classes", spec.classes);
        self.that(spec.hidden.len() <= MAX_HIDDEN, "model.hidden", || {
            format!("expected at most {MAX_HIDDEN} layers, got {}", spec.hidden.len())
        });
        for (index, width) in spec.hidden.iter().enumerate() {
            self.length(&format!("hidden[{index}]"), *width);
        }
    }

    fn resnet(&mut self, spec: &ResnetSpec) {
        self.length("input[0]", spec.input[0]);
        self.range("model.input[1]", spec.input[1], 1, MAX_IMAGE);
        self.range("model.input[2]", spec.input[2], 1, MAX_IMAGE);
        self.length("classes", spec.classes);
    }

    fn gpt2(&mut self, spec: &Gpt2Spec) {
        self.length("vocab_size", spec.vocab_size);
        self.length("n_positions", spec.n_positions);
        self.heads(["n_head", "n_embd"], spec.n_head, spec.n_embd);
        self.range("model.n_layer", spec.n_layer, 1, MAX_BLOCKS);
        if let Some(inner) = spec.n_inner {
            self.length("n_inner", inner);
        }
        self.dropout("resid_pdrop", spec.resid_pdrop);
        self.dropout("embd_pdrop", spec.embd_pdrop);
        self.dropout("attn_pdrop", spec.attn_pdrop);
        self.epsilon("layer_norm_epsilon", spec.layer_norm_epsilon);
    }

    fn bert(&mut self, spec: &BertSpec) {
        self.length("vocab_size", spec.vocab_size);
        self.length("max_position_embeddings", spec.max_position_embeddings);
        self.length("type_vocab_size", spec.type_vocab_size);
        let names = ["num_attention_heads", "hidden_size"];
        self.heads(names, spec.num_attention_heads, spec.hidden_size);
        self.range("model.num_hidden_layers", spec.num_hidden_layers, 1, MAX_BLOCKS);
        self.length("intermediate_size", spec.intermediate_size);
        self.length("classes", spec.classes);
        self.dropout("hidden_dropout_prob", spec.hidden_dropout_prob);
        self.dropout("attention_probs_dropout_prob", spec.attention_probs_dropout_prob);
        self.epsilon("layer_norm_eps", spec.layer_norm_eps);
    }

    fn vit(&mut self, spec: &VitSpec) {
        let (image, patch) = (spec.image_size, spec.patch_size);
        if self.range("model.image_size", image, 1, MAX_IMAGE)
            & self.range("model.patch_size", patch, 1, MAX_IMAGE)
        {
            self.that(image.is_multiple_of(patch), "model.patch_size", || {
                format!("expected a divisor of model.image_size = {image}, got {patch}")
            });
        }
        self.length("in_channels", spec.in_channels);
        self.heads(["num_heads", "hidden_dim"], spec.num_heads, spec.hidden_dim);
        self.range("model.num_layers", spec.num_layers, 1, MAX_BLOCKS);
        self.length("mlp_dim", spec.mlp_dim);
        self.length("classes", spec.classes);
        self.dropout("dropout", spec.dropout);
        self.dropout("attention_dropout", spec.attention_dropout);
    }

    fn layers(&mut self, spec: &LayersSpec) {
        let before = self.errors.len();
        self.that((1..=3).contains(&spec.input.len()), "model.input", || {
            format!("expected 1 to 3 axes, got {}", spec.input.len())
        });
        for (axis, length) in spec.input.iter().enumerate() {
            self.length(&format!("input[{axis}]"), *length);
        }
        self.that((1..=MAX_LAYERS).contains(&spec.layers.len()), "model.layers", || {
            format!("expected 1 to {MAX_LAYERS} layers, got {}", spec.layers.len())
        });
        for (index, layer) in spec.layers.iter().enumerate() {
            self.layer(index, layer);
        }
        // A shape is worth walking only where every size is one.
        if self.errors.len() != before {
            return;
        }
        match spec.shapes() {
            Err(misfit) => {
                self.add(
                    &format!("model.layers[{}].{}", misfit.index, misfit.field),
                    misfit.message,
                );
            }
            Ok(shapes) => {
                for (index, shape) in shapes.iter().enumerate() {
                    let field = match index.checked_sub(1) {
                        None => "model.input".to_owned(),
                        Some(layer) => format!("model.layers[{layer}]"),
                    };
                    let count = crate::spec::shapes::product(shape);
                    self.that(count <= MAX_SAMPLE, &field, || {
                        format!("expected at most {MAX_SAMPLE} numbers of a sample, got {count}: {shape:?}")
                    });
                }
            }
        }
    }

    fn layer(&mut self, index: usize, layer: &LayerSpec) {
        let at = |field: &str| format!("layers[{index}].{field}");
        match layer {
            LayerSpec::Linear(it) => drop(self.length(&at("linear.out"), it.out)),
            LayerSpec::Conv2d(it) => {
                self.length(&at("conv2d.out"), it.out);
                self.length(&at("conv2d.groups"), it.groups);
                self.window(&at("conv2d.kernel"), it.kernel, 1);
                self.window(&at("conv2d.stride"), it.stride, 1);
                self.window(&at("conv2d.padding"), it.padding, 0);
                self.window(&at("conv2d.dilation"), it.dilation, 1);
            }
            LayerSpec::MaxPool2d(it) => {
                self.pool(&at("max_pool2d"), it.kernel, it.stride, it.padding);
            }
            LayerSpec::AvgPool2d(it) => {
                self.pool(&at("avg_pool2d"), it.kernel, it.stride, it.padding);
            }
            LayerSpec::AdaptiveAvgPool2d(it) => {
                self.window(&at("adaptive_avg_pool2d.size"), it.size, 1);
            }
            LayerSpec::BatchNorm(it) => {
                self.epsilon(&at("batch_norm.eps"), it.eps);
                self.number(&format!("model.{}", at("batch_norm.momentum")), it.momentum, 0.0, 1.0);
            }
            LayerSpec::LayerNorm(it) => self.epsilon(&at("layer_norm.eps"), it.eps),
            LayerSpec::RmsNorm(it) => self.epsilon(&at("rms_norm.eps"), it.eps),
            LayerSpec::Dropout(it) => self.dropout(&at("dropout.p"), it.p),
            LayerSpec::Flatten
            | LayerSpec::Relu
            | LayerSpec::Gelu
            | LayerSpec::GeluNew
            | LayerSpec::Silu
            | LayerSpec::Tanh
            | LayerSpec::Sigmoid => {}
        }
    }

    fn window(&mut self, field: &str, value: u32, low: u64) {
        self.range(&format!("model.{field}"), value, low, MAX_WINDOW);
    }

    fn pool(&mut self, layer: &str, kernel: u32, stride: Option<u32>, padding: u32) {
        self.window(&format!("{layer}.kernel"), kernel, 1);
        self.window(&format!("{layer}.stride"), stride.unwrap_or(kernel.max(1)), 1);
        self.window(&format!("{layer}.padding"), padding, 0);
    }
}
