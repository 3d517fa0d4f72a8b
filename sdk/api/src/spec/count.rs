//! How many trainable numbers a model has, from its sizes alone. Saturating: a count that no machine holds is the
//! largest u64. Running statistics of batch norms are not trained and not counted.

use super::model::{ArchSpec, BertSpec, Gpt2Spec, MlpSpec, ResnetSpec, ResnetStem, VitSpec};
use super::shapes::{linear_count, product};

impl ArchSpec {
    /// Trainable numbers of the model.
    pub fn parameter_count(&self) -> u64 {
        match self {
            Self::Mlp(it) => it.parameter_count(),
            Self::Layers(it) => it.parameter_count(),
            Self::Resnet18(it) => resnet(it, [2, 2, 2, 2], Block::Basic),
            Self::Resnet34(it) => resnet(it, [3, 4, 6, 3], Block::Basic),
            Self::Resnet50(it) => resnet(it, [3, 4, 6, 3], Block::Bottleneck),
            Self::Gpt2(it) => it.parameter_count(),
            Self::Bert(it) => it.parameter_count(),
            Self::Vit(it) => it.parameter_count(),
        }
    }
}

impl MlpSpec {
    fn parameter_count(&self) -> u64 {
        let widths: Vec<u64> = [self.inputs]
            .iter()
            .chain(&self.hidden)
            .chain([&self.classes])
            .map(|&width| u64::from(width))
            .collect();
        sum(widths.windows(2).map(|pair| linear_count(pair[0], pair[1], true)))
    }
}

#[derive(Clone, Copy)]
enum Block {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3, 1×1 with four times the width.
    Bottleneck,
}

/// A convolution without bias and the batch norm behind it.
fn conv_norm(inputs: u64, out: u64, kernel: u64) -> u64 {
    product(&[inputs, out, kernel, kernel]).saturating_add(2 * out)
}

fn resnet(spec: &ResnetSpec, stages: [u64; 4], block: Block) -> u64 {
    let stem_kernel = match spec.stem {
        ResnetStem::Imagenet => 7,
        ResnetStem::Small => 3,
    };
    let mut count = conv_norm(spec.input[0].into(), 64, stem_kernel);
    let mut inputs = 64;
    for (stage, blocks) in stages.into_iter().enumerate() {
        let width = 64 << stage;
        for _ in 0..blocks {
            let (out, inner) = match block {
                Block::Basic => (width, conv_norm(inputs, width, 3) + conv_norm(width, width, 3)),
                Block::Bottleneck => (
                    4 * width,
                    conv_norm(inputs, width, 1)
                        + conv_norm(width, width, 3)
                        + conv_norm(width, 4 * width, 1),
                ),
            };
            // The first block of a stage brings its input to the new width.
            let shortcut = if inputs == out { 0 } else { conv_norm(inputs, out, 1) };
            count = count.saturating_add(inner + shortcut);
            inputs = out;
        }
    }
    count.saturating_add(linear_count(inputs, spec.classes.into(), true))
}

/// Four projections with biases, two layer norms, and the feed-forward part.
fn transformer_block(width: u64, inner: u64) -> u64 {
    sum([
        linear_count(width, width, true).saturating_mul(4),
        width.saturating_mul(4),
        linear_count(width, inner, true),
        linear_count(inner, width, true),
    ])
}

impl Gpt2Spec {
    fn parameter_count(&self) -> u64 {
        let width = u64::from(self.n_embd);
        let tokens = product(&[self.vocab_size.into(), width]);
        sum([
            tokens,
            product(&[self.n_positions.into(), width]),
            transformer_block(width, self.inner()).saturating_mul(self.n_layer.into()),
            2 * width,
            if self.tie_word_embeddings { 0 } else { tokens },
        ])
    }
}

impl BertSpec {
    fn parameter_count(&self) -> u64 {
        let width = u64::from(self.hidden_size);
        let rows = [self.vocab_size, self.max_position_embeddings, self.type_vocab_size];
        let rows: u64 = rows.into_iter().map(u64::from).sum();
        let block = transformer_block(width, self.intermediate_size.into());
        sum([
            product(&[rows, width]),
            2 * width,
            block.saturating_mul(self.num_hidden_layers.into()),
            // The pooler.
            linear_count(width, width, true),
            linear_count(width, self.classes.into(), true),
        ])
    }
}

impl VitSpec {
    fn parameter_count(&self) -> u64 {
        let width = u64::from(self.hidden_dim);
        let patch = u64::from(self.patch_size);
        let side = u64::from(self.image_size / self.patch_size.max(1));
        let block = transformer_block(width, self.mlp_dim.into());
        sum([
            linear_count(product(&[self.in_channels.into(), patch, patch]), width, true),
            // The class token is one more position, and a parameter of its own.
            product(&[side * side + 2, width]),
            block.saturating_mul(self.num_layers.into()),
            2 * width,
            linear_count(width, self.classes.into(), true),
        ])
    }
}

fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}
