//! The number of threads changes no bit of a result.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, Activation, Attention, CrossEntropy, Dims, GradBuffer, LayerNorm, Layout, Op, Tape,
    Threads, init::Stream,
};

const BATCH: usize = 3;
const TIME: usize = 70;
const WIDTH: usize = 128;
const CLASSES: usize = 90;

/// Loss and gradients of one block of a language model, long enough for every loop to be shared.
fn step(threads: usize) -> Vec<u32> {
    let named = [
        ("tokens", vec![CLASSES, WIDTH]),
        ("positions", vec![TIME, WIDTH]),
        ("scale", vec![WIDTH]),
        ("shift", vec![WIDTH]),
        ("qkv", vec![3 * WIDTH, WIDTH]),
        ("inner", vec![2 * WIDTH, WIDTH]),
        ("inner bias", vec![2 * WIDTH]),
        ("outer", vec![WIDTH, 2 * WIDTH]),
        ("head", vec![CLASSES, WIDTH]),
    ];
    let named = named.map(|(name, shape)| (name.to_owned(), shape));
    let layout = Arc::new(Layout::new(named.to_vec()).unwrap());
    let stream = Stream::new(5, "weights");
    let weights: Vec<f32> =
        (0..layout.len()).map(|i| (stream.fraction(i as u64) - 0.5) as f32 * 0.2).collect();
    let mut tape = Tape::with_threads(Arc::clone(&layout), Threads::new(threads).unwrap());
    let [tokens, positions, scale, shift, qkv, inner, inner_bias, outer, head] =
        ["tokens", "positions", "scale", "shift", "qkv", "inner", "inner bias", "outer", "head"]
            .map(|name| tape.param(layout.id(name).unwrap()));
    let answers = BATCH * TIME;
    let ids: Vec<_> = (0..answers).map(|i| (i * 31 % CLASSES) as i64).collect();
    let ids_in = tape.index(&[BATCH, TIME], &ids).unwrap();
    let labels = tape.index(&[answers], &ids).unwrap();
    let mut apply = |op: Op, inputs: &[_]| tape.apply(op, inputs, &weights).unwrap();

    let norm = || Op::LayerNorm(LayerNorm { eps: 1e-5 });
    let x = apply(Op::Embedding, &[tokens, ids_in]);
    let x = apply(Op::Add, &[x, positions]);
    let y = apply(norm(), &[x, scale, shift]);
    let y = apply(Op::Linear(Activation::None), &[y, qkv]);
    let y = apply(Op::SelfAttention(Attention { heads: 4, causal: true }), &[y]);
    let x = apply(Op::Add, &[x, y]);
    let y = apply(norm(), &[x, scale, shift]);
    let y = apply(Op::Linear(Activation::Gelu), &[y, inner, inner_bias]);
    let y = apply(Op::Silu, &[y]);
    let y = apply(Op::Linear(Activation::None), &[y, outer]);
    let x = apply(Op::Add, &[x, y]);
    let x = apply(Op::Linear(Activation::None), &[x, head]);
    let x = apply(Op::Reshape(Dims::from_iter([answers, CLASSES])), &[x]);
    let rule = CrossEntropy { label_smoothing: 0.1, ignore_index: None };
    let y = apply(Op::CrossEntropy(rule), &[x, labels]);
    let loss = apply(Op::Mean, &[y]);

    let mut gradients = GradBuffer::new(layout);
    tape.backward(&[(loss, &[1.0])], &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    let numbers = gradients.values().iter().chain(tape.values(loss).unwrap());
    numbers.map(|x| x.to_bits()).collect()
}

#[test]
fn a_step_has_the_same_bits_on_every_number_of_threads() {
    let one = step(1);
    assert!(one.iter().any(|&bits| bits != 0));
    for threads in [2, 3, 4] {
        assert!(step(threads) == one, "{threads} threads");
    }
}
