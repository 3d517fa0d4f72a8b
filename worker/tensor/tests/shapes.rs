//! Shape inference without data: what each operation gives, and how it refuses.

#[path = "structural_cases/shapes.rs"]
mod structural;

use std::collections::BTreeSet;

use lockstep_tensor::{
    Activation, BatchNorm, Conv2d, CrossEntropy, DType, Dims, Dropout, LayerNorm, Meta, Op,
    OpError, RmsNorm,
};

fn f(shape: &[usize]) -> Meta {
    Meta::f32(shape)
}

fn i(shape: &[usize]) -> Meta {
    Meta::i64(shape)
}

fn infer(op: &Op, inputs: &[Meta]) -> Result<Meta, OpError> {
    op.infer(&inputs.iter().collect::<Vec<_>>())
}

const NORM: BatchNorm = BatchNorm { eps: 1e-5, relu: false };
const CONV: Conv2d =
    Conv2d { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1, relu: false };
const LAYER: LayerNorm = LayerNorm { eps: 1e-5 };
const RMS: RmsNorm = RmsNorm { eps: 1e-5 };
const ENTROPY: CrossEntropy = CrossEntropy { label_smoothing: 0.1, ignore_index: None };

fn good_norms_and_losses() -> Vec<(Op, Vec<Meta>, Meta)> {
    let (x, c) = (f(&[2, 3, 4, 4]), f(&[3]));
    let channels = |count: usize| vec![c.clone(); count];
    let with = |before: &Meta, middle: Vec<Meta>| [vec![before.clone()], middle].concat();
    let half = Dropout { p: 0.5, seed: 0 };
    vec![
        (Op::Softmax, vec![f(&[2, 3])], f(&[2, 3])),
        (Op::BatchNorm(NORM), with(&x, channels(2)), x.clone()),
        (Op::BatchNorm(NORM), [with(&x, channels(2)), vec![x.clone()]].concat(), x.clone()),
        (Op::BatchNorm(NORM), with(&f(&[2, 3]), channels(2)), f(&[2, 3])),
        (Op::BatchNorm(NORM), vec![f(&[2, 0]), f(&[0]), f(&[0])], f(&[2, 0])),
        (Op::BatchNormInference(NORM), with(&x, channels(4)), x.clone()),
        (Op::BatchNormInference(NORM), with(&f(&[0, 3]), channels(4)), f(&[0, 3])),
        (Op::LayerNorm(LAYER), vec![f(&[2, 4, 3]), f(&[3]), f(&[3])], f(&[2, 4, 3])),
        (Op::LayerNorm(LAYER), vec![f(&[0, 3]), f(&[3]), f(&[3])], f(&[0, 3])),
        (Op::RmsNorm(RMS), vec![f(&[3]), f(&[3])], f(&[3])),
        (Op::CrossEntropy(ENTROPY), vec![f(&[2, 3]), i(&[2])], f(&[2])),
        (Op::CrossEntropy(ENTROPY), vec![f(&[0, 3]), i(&[0])], f(&[0])),
        (Op::MseLoss, vec![f(&[2, 3]), f(&[2, 3])], f(&[2, 3])),
        (Op::BceWithLogits, vec![f(&[]), f(&[])], f(&[])),
        (Op::KlDiv, vec![f(&[2]), f(&[2])], f(&[2])),
        (Op::Embedding, vec![f(&[9, 3]), i(&[2, 4])], f(&[2, 4, 3])),
        (Op::Embedding, vec![f(&[9, 3]), i(&[])], f(&[3])),
        (Op::Dropout(half), vec![f(&[2, 3])], f(&[2, 3])),
    ]
}

fn bad_norms_and_losses() -> Vec<(Op, Vec<Meta>)> {
    let (x, c) = (f(&[2, 3, 4]), f(&[3]));
    let (relu, nan) = (false, f64::NAN);
    vec![
        (Op::Softmax, vec![f(&[2, 0])]),
        (Op::Softmax, vec![i(&[2])]),
        (Op::BatchNorm(NORM), vec![f(&[3]), c.clone(), c.clone()]),
        (Op::BatchNorm(NORM), vec![x.clone(), f(&[4]), c.clone()]),
        (Op::BatchNorm(NORM), vec![x.clone(), c.clone(), f(&[1, 3])]),
        (Op::BatchNorm(NORM), vec![x.clone(), c.clone(), c.clone(), f(&[2, 3])]),
        (Op::BatchNorm(NORM), vec![f(&[1, 3]), c.clone(), c.clone()]),
        (Op::BatchNorm(NORM), vec![f(&[2, 3, 0]), c.clone(), c.clone()]),
        (Op::BatchNorm(BatchNorm { eps: -1.0, relu }), vec![x.clone(), c.clone(), c.clone()]),
        (
            Op::BatchNormInference(BatchNorm { eps: nan, relu }),
            [vec![x.clone()], vec![c.clone(); 4]].concat(),
        ),
        (Op::BatchNormInference(NORM), vec![x.clone(), c.clone(), c.clone(), c.clone(), f(&[2])]),
        (Op::BatchNormInference(NORM), [vec![x.clone()], vec![c.clone(); 5]].concat()),
        (Op::LayerNorm(LAYER), vec![f(&[]), f(&[]), f(&[])]),
        (Op::LayerNorm(LAYER), vec![f(&[2, 0]), f(&[0]), f(&[0])]),
        (Op::LayerNorm(LAYER), vec![f(&[2, 3]), f(&[2]), f(&[3])]),
        (Op::LayerNorm(LAYER), vec![f(&[2, 3]), f(&[3]), f(&[2, 3])]),
        (Op::LayerNorm(LayerNorm { eps: nan }), vec![f(&[2, 3]), f(&[3]), f(&[3])]),
        (Op::RmsNorm(RMS), vec![f(&[2, 3]), f(&[2])]),
        (Op::RmsNorm(RmsNorm { eps: -1e-9 }), vec![f(&[2, 3]), f(&[3])]),
        (Op::CrossEntropy(ENTROPY), vec![f(&[2, 3]), f(&[2])]),
        (Op::CrossEntropy(ENTROPY), vec![i(&[2, 3]), i(&[2])]),
        (Op::CrossEntropy(ENTROPY), vec![f(&[2, 3]), i(&[3])]),
        (Op::CrossEntropy(ENTROPY), vec![f(&[2, 3, 4]), i(&[2])]),
        (Op::CrossEntropy(ENTROPY), vec![f(&[2, 0]), i(&[2])]),
        (
            Op::CrossEntropy(CrossEntropy { label_smoothing: 1.1, ..ENTROPY }),
            vec![f(&[2, 3]), i(&[2])],
        ),
        (
            Op::CrossEntropy(CrossEntropy { label_smoothing: nan, ..ENTROPY }),
            vec![f(&[2, 3]), i(&[2])],
        ),
        (Op::MseLoss, vec![f(&[2, 3]), f(&[3])]),
        (Op::BceWithLogits, vec![f(&[2]), i(&[2])]),
        (Op::KlDiv, vec![f(&[2]), f(&[])]),
        (Op::Embedding, vec![f(&[9]), i(&[2])]),
        (Op::Embedding, vec![f(&[9, 3]), f(&[2])]),
        (Op::Embedding, vec![i(&[9, 3]), i(&[2])]),
        (Op::Embedding, vec![f(&[1, 1 << 30]), i(&[1 << 30])]),
        (Op::Dropout(Dropout { p: 1.5, seed: 0 }), vec![f(&[2])]),
        (Op::Dropout(Dropout { p: nan, seed: 0 }), vec![f(&[2])]),
        (Op::Dropout(Dropout { p: 0.5, seed: 0 }), vec![i(&[2])]),
    ]
}

#[test]
fn shapes_that_fit_give_the_documented_result() {
    let mut good = vec![
        (Op::Linear(Activation::None), vec![f(&[8, 20]), f(&[32, 20]), f(&[32])], f(&[8, 32])),
        (Op::Linear(Activation::None), vec![f(&[2, 4, 20]), f(&[32, 20])], f(&[2, 4, 32])),
        (Op::Affine(Activation::None), vec![f(&[8, 20]), f(&[20, 32])], f(&[8, 32])),
        (Op::Conv2d(CONV), vec![f(&[1, 3, 5, 5]), f(&[2, 3, 3, 3])], f(&[1, 2, 3, 3])),
        (Op::MatMul, vec![f(&[2, 3]), f(&[3, 4])], f(&[2, 4])),
        (Op::Add, vec![f(&[2, 3]), f(&[2, 3])], f(&[2, 3])),
        (Op::Sub, vec![f(&[]), f(&[2, 3])], f(&[2, 3])),
        (Op::Mul, vec![f(&[2, 3]), f(&[])], f(&[2, 3])),
        (Op::Div, vec![f(&[2, 4, 3]), f(&[3])], f(&[2, 4, 3])),
        (Op::Neg, vec![f(&[2])], f(&[2])),
        (Op::Scale(2.0), vec![f(&[])], f(&[])),
        (Op::Exp, vec![f(&[0, 2])], f(&[0, 2])),
        (Op::Log, vec![f(&[2])], f(&[2])),
        (Op::Relu, vec![f(&[2])], f(&[2])),
        (Op::LogSoftmax, vec![f(&[2, 3])], f(&[2, 3])),
        (Op::Gather, vec![f(&[2, 3]), i(&[2])], f(&[2])),
        (Op::Sum, vec![f(&[2, 3])], f(&[])),
        (Op::Sum, vec![f(&[0])], f(&[])),
        (Op::Mean, vec![f(&[2, 3])], f(&[])),
        (Op::ArgMax, vec![f(&[2, 4, 3])], i(&[2, 4])),
        (Op::Equal, vec![i(&[2]), i(&[2])], f(&[2])),
        (Op::ToFloat, vec![i(&[2])], f(&[2])),
        (Op::Detach, vec![i(&[2])], i(&[2])),
        (Op::Reshape([3, 2].into_iter().collect()), vec![f(&[2, 3])], f(&[3, 2])),
        (Op::Reshape(Dims::new()), vec![f(&[1, 1])], f(&[])),
    ];
    good.extend(good_norms_and_losses());
    good.extend(structural::good());
    let names: BTreeSet<_> = good.iter().map(|(op, ..)| op.name()).collect();
    assert_eq!(names, Op::NAMES.iter().copied().collect());
    for (op, inputs, expected) in good {
        assert_eq!(infer(&op, &inputs).unwrap(), expected, "{}", op.name());
    }
}

#[test]
fn every_refusal_names_the_operation_and_the_shapes() {
    let mut bad = vec![
        (Op::Linear(Activation::None), vec![f(&[8, 20]), f(&[32, 21]), f(&[32])]),
        (Op::Linear(Activation::None), vec![f(&[8, 20]), f(&[32, 20]), f(&[31])]),
        (Op::Linear(Activation::None), vec![f(&[20]), f(&[32, 20]), f(&[32])]),
        (Op::Linear(Activation::None), vec![f(&[8, 20]), f(&[20]), f(&[])]),
        (Op::MatMul, vec![f(&[2, 3]), f(&[4, 3])]),
        (Op::Add, vec![f(&[2, 3]), f(&[3, 2])]),
        (Op::Sub, vec![f(&[2, 3]), f(&[2])]),
        (Op::Affine(Activation::None), vec![f(&[8, 20]), f(&[32, 20])]),
        (Op::Conv2d(CONV), vec![f(&[1, 3, 5, 5]), f(&[2, 4, 3, 3])]),
        (Op::Mul, vec![f(&[2, 3]), i(&[2, 3])]),
        (Op::Mul, vec![f(&[2]), Meta::new(DType::F64, [2])]),
        (Op::Div, vec![f(&[3]), f(&[2, 2])]),
        (Op::Neg, vec![i(&[2])]),
        (Op::Scale(2.0), vec![i(&[2])]),
        (Op::Scale(f64::NAN), vec![f(&[2])]),
        (Op::AddScalar(f64::INFINITY), vec![f(&[2])]),
        (Op::Pow(f64::NAN), vec![f(&[2])]),
        (Op::Exp, vec![i(&[2])]),
        (Op::Log, vec![i(&[2])]),
        (Op::Relu, vec![i(&[2])]),
        (Op::LogSoftmax, vec![f(&[])]),
        (Op::LogSoftmax, vec![f(&[2, 0])]),
        (Op::Gather, vec![f(&[2, 3]), f(&[2])]),
        (Op::Gather, vec![f(&[2, 3]), i(&[3])]),
        (Op::Gather, vec![f(&[2]), i(&[2])]),
        (Op::Gather, vec![i(&[2, 3]), i(&[2])]),
        (Op::Sum, vec![i(&[2])]),
        (Op::Mean, vec![f(&[0])]),
        (Op::ArgMax, vec![f(&[2, 0])]),
        (Op::Equal, vec![i(&[2]), f(&[2])]),
        (Op::Equal, vec![i(&[2]), i(&[3])]),
        (Op::ToFloat, vec![f(&[2])]),
        (Op::Reshape([4].into_iter().collect()), vec![f(&[2, 3])]),
        (Op::Reshape([usize::MAX, 2].into_iter().collect()), vec![f(&[2, 3])]),
        (Op::MatMul, vec![f(&[1 << 30, 1]), f(&[1, 1 << 30])]),
    ];
    bad.extend(bad_norms_and_losses());
    bad.extend(structural::bad());
    let names: BTreeSet<_> = bad.iter().map(|(op, _)| op.name()).chain(["detach"]).collect();
    assert_eq!(names, Op::NAMES.iter().copied().collect(), "detach alone takes anything");
    for (op, inputs) in bad {
        let message = infer(&op, &inputs).unwrap_err().to_string();
        assert!(message.starts_with(op.name()), "{message}");
        for input in &inputs {
            assert!(message.contains(&input.to_string()), "{message} does not name {input}");
        }
    }
}

#[test]
fn a_wrong_number_of_inputs_is_refused() {
    let message = infer(&Op::Linear(Activation::None), &[f(&[8, 20])]).unwrap_err().to_string();
    assert_eq!(message, "linear takes 2 to 3 inputs, 1 given");
    let message = infer(&Op::Sum, &[]).unwrap_err().to_string();
    assert_eq!(message, "sum takes 1 inputs, 0 given");
    let many = vec![f(&[]); 9];
    assert!(infer(&Op::Add, &many).is_err());
}

#[test]
fn a_refusal_reads_as_a_sentence() {
    let message =
        infer(&Op::Linear(Activation::None), &[f(&[8, 20]), f(&[32, 21]), f(&[32])]).unwrap_err();
    assert_eq!(
        message.to_string(),
        "linear of f32[8, 20], f32[32, 21], f32[32]: the last axis of x must be as long as w's input"
    );
}
