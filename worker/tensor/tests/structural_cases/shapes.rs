//! Cases of products, attention, windows, axes and places.

use lockstep_tensor::{Attention, Axes, Clamp, DType, Half, Meta, Op, Pool2d, ScatterAdd, Slice};

use super::{f, i};

const MAX: usize = usize::MAX;

fn attention(heads: usize) -> Op {
    Op::Attention(Attention { heads, causal: false })
}

fn packed(heads: usize) -> Op {
    Op::SelfAttention(Attention { heads, causal: true })
}

fn pool(kernel: usize, stride: usize, padding: usize) -> Pool2d {
    Pool2d { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2] }
}

fn axes(axes: &[usize], keep: bool) -> Axes {
    Axes { axes: axes.iter().copied().collect(), keep }
}

fn permute(axes: &[usize]) -> Op {
    Op::Permute(axes.iter().copied().collect())
}

fn slice(axis: usize, start: usize, len: usize) -> Op {
    Op::Slice(Slice { axis, start, len })
}

fn scatter(axis: usize, len: usize) -> Op {
    Op::ScatterAdd(ScatterAdd { axis, len })
}

/// Functions of one tensor of floats.
fn functions() -> Vec<Op> {
    vec![
        Op::AddScalar(1.0),
        Op::Sqrt,
        Op::Abs,
        Op::Pow(2.5),
        Op::Clamp(Clamp { min: 0.0, max: 0.0 }),
        Op::Sigmoid,
        Op::Tanh,
        Op::Gelu,
        Op::GeluTanh,
        Op::Silu,
        Op::Cast(Half::Bf16),
    ]
}

pub(crate) fn good() -> Vec<(Op, Vec<Meta>, Meta)> {
    let mut good = vec![
        (Op::MatMul, vec![f(&[7, 2, 3]), f(&[7, 3, 4])], f(&[7, 2, 4])),
        (Op::MatMul, vec![f(&[7, 5, 2, 3]), f(&[3, 4])], f(&[7, 5, 2, 4])),
        (Op::MatMul, vec![f(&[2, 0]), f(&[0, 4])], f(&[2, 4])),
        (attention(2), vec![f(&[2, 3, 4]), f(&[2, 5, 4]), f(&[2, 5, 4])], f(&[2, 3, 4])),
        (
            attention(4),
            vec![f(&[2, 3, 4]), f(&[2, 5, 4]), f(&[2, 5, 4]), i(&[2, 5])],
            f(&[2, 3, 4]),
        ),
        (packed(2), vec![f(&[2, 3, 12])], f(&[2, 3, 4])),
        (packed(2), vec![f(&[2, 3, 12]), i(&[2, 3])], f(&[2, 3, 4])),
        (Op::MaxPool2d(pool(3, 2, 1)), vec![f(&[2, 3, 8, 7])], f(&[2, 3, 4, 4])),
        (Op::AvgPool2d(pool(2, 2, 0)), vec![f(&[2, 3, 5, 4])], f(&[2, 3, 2, 2])),
        (Op::AvgPool2d(pool(2, 1, 1)), vec![f(&[0, 3, 1, 1])], f(&[0, 3, 2, 2])),
        (Op::AdaptiveAvgPool2d([1, 6]), vec![f(&[2, 3, 5, 4])], f(&[2, 3, 1, 6])),
        (Op::SumAxes(axes(&[1], false)), vec![f(&[2, 3, 4])], f(&[2, 4])),
        (Op::SumAxes(axes(&[1], false)), vec![f(&[2, 0])], f(&[2])),
        (Op::MeanAxes(axes(&[2, 0], true)), vec![f(&[2, 3, 4])], f(&[1, 3, 1])),
        (Op::MaxAxes(axes(&[0, 1], false)), vec![f(&[2, 3])], f(&[])),
        (permute(&[2, 0, 1]), vec![f(&[2, 3, 4])], f(&[4, 2, 3])),
        (permute(&[1, 0]), vec![i(&[2, 3])], i(&[3, 2])),
        (slice(1, 2, 1), vec![f(&[2, 3])], f(&[2, 1])),
        (slice(0, 2, 0), vec![i(&[2, 3])], i(&[0, 3])),
        (Op::Concat(1), vec![f(&[2, 3]), f(&[2, 0]), f(&[2, 1])], f(&[2, 4])),
        (Op::Concat(0), vec![i(&[2]), i(&[1])], i(&[3])),
        (Op::GatherAxis(1), vec![f(&[2, 3]), i(&[1, 5])], f(&[1, 5])),
        (scatter(0, 7), vec![f(&[2, 3]), i(&[2, 3])], f(&[7, 3])),
        (Op::Where, vec![i(&[2, 3]), f(&[2, 3]), f(&[2, 3])], f(&[2, 3])),
    ];
    good.extend(functions().into_iter().map(|op| (op, vec![f(&[2, 0])], f(&[2, 0]))));
    good
}

pub(crate) fn bad() -> Vec<(Op, Vec<Meta>)> {
    let mut bad = bad_products();
    bad.extend(bad_windows_and_axes());
    bad.extend(bad_places());
    bad.extend(functions().into_iter().map(|op| (op, vec![i(&[2])])));
    bad.extend([
        (Op::Clamp(Clamp { min: 1.0, max: 0.0 }), vec![f(&[2])]),
        (Op::Clamp(Clamp { min: f64::NAN, max: 0.0 }), vec![f(&[2])]),
    ]);
    bad
}

fn bad_products() -> Vec<(Op, Vec<Meta>)> {
    let (q, k) = (f(&[2, 3, 4]), f(&[2, 5, 4]));
    let too_many = f(&[1, 1 << 21, 1]);
    vec![
        (Op::MatMul, vec![f(&[3]), f(&[3, 4])]),
        (Op::MatMul, vec![f(&[2, 3]), f(&[3])]),
        (Op::MatMul, vec![f(&[2, 3]), f(&[1, 3, 4])]),
        (Op::MatMul, vec![f(&[2, 2, 3]), f(&[1, 3, 4])]),
        (Op::MatMul, vec![f(&[7, 2, 3]), f(&[7, 2, 3])]),
        (attention(0), vec![q.clone(), k.clone(), k.clone()]),
        (attention(3), vec![q.clone(), k.clone(), k.clone()]),
        (attention(8), vec![q.clone(), k.clone(), k.clone()]),
        (attention(1), vec![f(&[2, 3, 0]), f(&[2, 5, 0]), f(&[2, 5, 0])]),
        (attention(2), vec![q.clone(), k.clone(), q.clone()]),
        (attention(2), vec![q.clone(), f(&[3, 5, 4]), f(&[3, 5, 4])]),
        (attention(2), vec![q.clone(), f(&[2, 5, 8]), f(&[2, 5, 8])]),
        (attention(2), vec![f(&[3, 4]), f(&[3, 4]), f(&[3, 4])]),
        (attention(2), vec![q.clone(), k.clone(), i(&[2, 5, 4])]),
        (attention(2), vec![q.clone(), k.clone(), k.clone(), i(&[2, 3])]),
        (attention(2), vec![q.clone(), k.clone(), k.clone(), f(&[2, 5])]),
        (attention(1), vec![too_many.clone(), too_many.clone(), too_many]),
        (packed(2), vec![f(&[2, 3, 13])]),
        (packed(3), vec![f(&[2, 3, 12])]),
        (packed(0), vec![f(&[2, 3, 12])]),
        (packed(1), vec![f(&[2, 3, 0])]),
        (packed(2), vec![f(&[3, 12])]),
        (packed(2), vec![i(&[2, 3, 12])]),
        (packed(2), vec![f(&[2, 3, 12]), i(&[3, 2])]),
        (packed(1), vec![f(&[1, 1 << 21, 3])]),
    ]
}

fn bad_windows_and_axes() -> Vec<(Op, Vec<Meta>)> {
    let x = f(&[2, 3, 4, 5]);
    let mut bad = vec![
        (Op::AdaptiveAvgPool2d([0, 1]), vec![x.clone()]),
        (Op::AdaptiveAvgPool2d([1, 0]), vec![x.clone()]),
        (Op::AdaptiveAvgPool2d([1, 1]), vec![f(&[2, 3, 0, 5])]),
        (Op::AdaptiveAvgPool2d([MAX, MAX]), vec![x.clone()]),
        (Op::AdaptiveAvgPool2d([1, 1]), vec![f(&[2, 3, 4])]),
        (Op::MaxPool2d(pool(1, 1, 0)), vec![i(&[2, 3, 4, 5])]),
        (Op::SumAxes(axes(&[1], false)), vec![i(&[2, 3])]),
        (Op::MeanAxes(axes(&[1], false)), vec![f(&[2, 0])]),
        (Op::MaxAxes(axes(&[0], false)), vec![f(&[0, 2])]),
        (Op::SumAxes(axes(&[0], false)), vec![f(&[1; 9])]),
    ];
    for pool in [pool(0, 1, 0), pool(2, 0, 0), pool(3, 1, 2), pool(5, 1, 0), pool(MAX, 1, MAX / 2)]
    {
        bad.push((Op::MaxPool2d(pool), vec![x.clone()]));
        bad.push((Op::AvgPool2d(pool), vec![x.clone()]));
    }
    for axes in [axes(&[], false), axes(&[2], false), axes(&[MAX], true), axes(&[1, 1], true)] {
        bad.push((Op::SumAxes(axes.clone()), vec![f(&[2, 3])]));
        bad.push((Op::MeanAxes(axes.clone()), vec![f(&[2, 3])]));
        bad.push((Op::MaxAxes(axes), vec![f(&[2, 3])]));
    }
    bad
}

fn bad_places() -> Vec<(Op, Vec<Meta>)> {
    let x = f(&[2, 3]);
    vec![
        (permute(&[0]), vec![x.clone()]),
        (permute(&[0, 2]), vec![x.clone()]),
        (permute(&[1, 1]), vec![x.clone()]),
        (slice(2, 0, 1), vec![x.clone()]),
        (slice(1, 2, 2), vec![x.clone()]),
        (slice(1, MAX, 2), vec![x.clone()]),
        (Op::Concat(2), vec![x.clone(), x.clone()]),
        (Op::Concat(0), vec![x.clone(), f(&[2, 4])]),
        (Op::Concat(1), vec![x.clone(), f(&[2, 3, 1])]),
        (Op::Concat(0), vec![x.clone(), i(&[2, 3])]),
        (Op::Concat(0), vec![x.clone(), Meta::new(DType::F64, [2, 3])]),
        (Op::Concat(0), vec![f(&[MAX, 0]), f(&[1, 0])]),
        (Op::GatherAxis(2), vec![x.clone(), i(&[2, 3])]),
        (Op::GatherAxis(1), vec![x.clone(), i(&[3, 3])]),
        (Op::GatherAxis(1), vec![x.clone(), i(&[2])]),
        (Op::GatherAxis(1), vec![x.clone(), x.clone()]),
        (Op::GatherAxis(1), vec![i(&[2, 3]), i(&[2, 3])]),
        (Op::GatherAxis(0), vec![f(&[1; 9]), i(&[1; 9])]),
        (scatter(2, 1), vec![x.clone(), i(&[2, 3])]),
        (scatter(0, 1), vec![x.clone(), i(&[2, 2])]),
        (scatter(0, 1), vec![x.clone(), x.clone()]),
        (scatter(0, 1), vec![i(&[2, 3]), i(&[2, 3])]),
        (scatter(0, MAX), vec![x.clone(), i(&[2, 3])]),
        (Op::Where, vec![x.clone(), x.clone(), x.clone()]),
        (Op::Where, vec![i(&[2, 3]), x.clone(), i(&[2, 3])]),
        (Op::Where, vec![i(&[2, 3]), x.clone(), f(&[3, 2])]),
        (Op::Where, vec![i(&[3, 2]), x.clone(), x]),
    ]
}
