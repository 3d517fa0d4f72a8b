//! Shape inference without data: what each operation gives, and how it refuses.

#[path = "structural_cases/shapes.rs"]
mod structural;

use std::collections::BTreeSet;

use lockstep_tensor::{Activation, DType, Dims, Meta, Op, OpError};

fn f(shape: &[usize]) -> Meta {
    Meta::f32(shape)
}

fn i(shape: &[usize]) -> Meta {
    Meta::i64(shape)
}

fn infer(op: &Op, inputs: &[Meta]) -> Result<Meta, OpError> {
    op.infer(&inputs.iter().collect::<Vec<_>>())
}

#[test]
fn shapes_that_fit_give_the_documented_result() {
    let mut good = vec![
        (Op::Linear(Activation::None), vec![f(&[8, 20]), f(&[32, 20]), f(&[32])], f(&[8, 32])),
        (Op::Linear(Activation::None), vec![f(&[2, 4, 20]), f(&[32, 20])], f(&[2, 4, 32])),
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
        (Op::Mul, vec![f(&[2, 3]), i(&[2, 3])]),
        (Op::Mul, vec![f(&[2]), Meta::new(DType::F64, [2])]),
        (Op::Div, vec![f(&[3]), f(&[1])]),
        (Op::Neg, vec![i(&[2])]),
        (Op::Scale(2.0), vec![i(&[2])]),
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
    assert_eq!(message, "linear takes 2 or 3 inputs, 1 given");
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
        "linear of f32[8, 20], f32[32, 21], f32[32]: the last axes of x and w must be equally long"
    );
}
