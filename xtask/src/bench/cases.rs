//! The cases of the step benchmark, described in bench/README.md: how much work each is, and its targets.
//!
//! Work is counted in floating-point operations of matrix products and convolutions, a multiply and an add each: forward,
//! weight gradient, and input gradient where something in front of the layer is trained.

use serde::Serialize;

/// One case.
#[derive(Debug)]
pub(crate) struct Case {
    /// Its name on the command line and in tables.
    pub(crate) name: &'static str,
    /// Floating-point operations of one step.
    pub(crate) work: u64,
    /// Steps of one turn: about a quarter of a second of the peer's.
    pub(crate) steps: u32,
    /// On one thread.
    pub(crate) target: Target,
}

/// What a case should reach.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Target {
    /// The peer's time by ours, at least.
    pub(crate) ratio: f64,
    /// Our peak of memory by the peer's, at most.
    pub(crate) peak_fraction: f64,
}

/// The product whose best time is the machine's limit.
pub(crate) const CEILING: &str = "gemm-1024";
pub(crate) const CEILING_WORK: u64 = 2 * 1024 * 1024 * 1024;
pub(crate) const CEILING_STEPS: u32 = 10;

/// All cases.
pub(crate) const CASES: [Case; 6] = [
    Case::new("mlp-128", mlp(128), 16, 1.15, 1.0 / 10.0),
    Case::new("mlp-8", mlp(8), 80, 2.0, 1.0 / 10.0),
    Case::new("cnn-128", cnn(128), 2, 1.4, 1.0 / 5.0),
    Case::new("resnet18-32", resnet18(32), 1, 1.15, 1.0 / 3.0),
    Case::new("gpt-8", gpt(8), 2, 1.1, 1.0 / 3.0),
    Case::new("bert-8", bert(8), 2, 1.1, 1.0 / 3.0),
];

impl Case {
    const fn new(
        name: &'static str,
        work: u64,
        steps: u32,
        ratio: f64,
        peak_fraction: f64,
    ) -> Self {
        Self { name, work, steps, target: Target { ratio, peak_fraction } }
    }
}

/// Forward and both gradients.
const TRAINED: u64 = 3;
/// The first layer has no input gradient.
const FIRST: u64 = 2;

const fn linear(rows: u64, inputs: u64, outputs: u64) -> u64 {
    2 * rows * inputs * outputs
}

/// Square window, `side`² outputs a channel.
const fn conv(batch: u64, inputs: u64, outputs: u64, window: u64, side: u64) -> u64 {
    linear(batch * side * side, window * window * inputs, outputs)
}

const fn mlp(batch: u64) -> u64 {
    FIRST * linear(batch, 784, 1024)
        + TRAINED * (linear(batch, 1024, 1024) + linear(batch, 1024, 10))
}

const fn cnn(batch: u64) -> u64 {
    FIRST * conv(batch, 1, 32, 3, 28)
        + TRAINED * (conv(batch, 32, 64, 3, 28) + linear(batch, 64 * 14 * 14, 10))
}

const fn resnet18(batch: u64) -> u64 {
    // Four convolutions a stage; from the second stage on the first of them halves the side and doubles the channels,
    // and so does the 1x1 convolution beside it.
    let mut trained = 4 * conv(batch, 64, 64, 3, 32) + linear(batch, 512, 10);
    let (mut channels, mut side) = (128, 16);
    while channels <= 512 {
        trained += conv(batch, channels / 2, channels, 3, side)
            + 3 * conv(batch, channels, channels, 3, side)
            + conv(batch, channels / 2, channels, 1, side);
        channels *= 2;
        side /= 2;
    }
    FIRST * conv(batch, 3, 64, 3, 32) + TRAINED * trained
}

const LAYERS: u64 = 4;
const WIDTH: u64 = 256;
const LENGTH: u64 = 128;
const VOCABULARY: u64 = 512;

/// The layers of a transformer; `seen` positions for each token of a text, in total.
const fn transformer(batch: u64, seen: u64) -> u64 {
    let tokens = batch * LENGTH;
    // Query, key and value, output, and the two of the feed-forward part.
    let products = linear(tokens, WIDTH, 12 * WIDTH);
    let attention = 2 * linear(batch * seen, WIDTH, 1);
    LAYERS * (products + attention)
}

const fn gpt(batch: u64) -> u64 {
    // A token sees itself and those before it: what the mask hides is no work.
    let layers = transformer(batch, LENGTH * (LENGTH + 1) / 2);
    TRAINED * (layers + linear(batch * LENGTH, WIDTH, VOCABULARY))
}

const fn bert(batch: u64) -> u64 {
    let layers = transformer(batch, LENGTH * LENGTH);
    TRAINED * (layers + linear(batch, WIDTH, WIDTH) + linear(batch, WIDTH, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted by PyTorch 2.15 (`torch.utils.flop_counter`) for the models of bench/peer/step.py. Attention is left
    /// out: its count takes the masked half for work and the scores, computed again in backward, too.
    #[test]
    fn work_is_what_another_counter_says() {
        let attention = |seen: u64| TRAINED * LAYERS * 2 * linear(8 * seen, WIDTH, 1);
        let counted = [
            ("mlp-128", 1_224_212_480),
            ("mlp-8", 76_513_280),
            ("cnn-128", 11_310_071_808),
            ("resnet18-32", 106_527_916_032),
            ("gpt-8", 20_132_659_200 + attention(LENGTH * (LENGTH + 1) / 2)),
            ("bert-8", 19_330_523_136 + attention(LENGTH * LENGTH)),
        ];
        assert_eq!(CASES.each_ref().map(|case| (case.name, case.work)), counted);
    }
}
