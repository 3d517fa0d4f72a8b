//! Cases of products, attention, windows, axes and places.

use lockstep_tensor::{Attention, Axes, Clamp, Op, Pool2d, ScatterAdd, Slice};

use super::{
    Arg::{self, Param, Shaped},
    Case, case,
};

fn masked(case: Case, shape: &'static [usize], index: &[i64]) -> Case {
    let mut args = case.args.clone();
    args.push(Shaped(shape));
    Case { args, index: index.to_vec(), ..case }
}

fn with(args: &[Arg], case: Case) -> Case {
    Case { args: args.to_vec(), ..case }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case(Op::MatMul, &[&[2, 3, 4], &[2, 4, 5]]),
        case(Op::MatMul, &[&[2, 3, 4], &[4, 5]]),
        case(Op::MatMul, &[&[2, 2, 3, 4], &[2, 2, 4, 2]]),
        case(Op::MatMul, &[&[2, 3, 0], &[2, 0, 5]]),
        with(&[Param(0), Param(0)], case(Op::MatMul, &[&[2, 3, 3]])),
    ];
    cases.extend(attention());
    cases.extend(windows());
    cases.extend(reductions());
    cases.extend(places());
    cases.extend(functions());
    cases
}

fn attention() -> Vec<Case> {
    let of = |heads, causal| Op::Attention(Attention { heads, causal });
    let packed = |heads, causal| Op::SelfAttention(Attention { heads, causal });
    let mut cases = vec![
        case(of(1, false), &[&[1, 1, 1], &[1, 1, 1], &[1, 1, 1]]),
        case(of(2, false), &[&[2, 3, 4], &[2, 0, 4], &[2, 0, 4]]),
        masked(
            case(of(2, false), &[&[2, 3, 4], &[2, 3, 4], &[2, 3, 4]]),
            &[2, 3],
            &[1, 0, 1, 0, 0, 0],
        ),
        masked(
            case(of(1, true), &[&[2, 3, 4], &[2, 3, 4], &[2, 3, 4]]),
            &[2, 3],
            &[0, 1, 1, 1, 1, 0],
        ),
        with(&[Param(0), Param(0), Param(0)], case(of(2, true), &[&[2, 3, 4]])),
        masked(case(packed(2, true), &[&[2, 3, 12]]), &[2, 3], &[0, 1, 1, 1, 1, 0]),
    ];
    for causal in [false, true] {
        // Across blocks, more keys than queries, fewer.
        for (queries, keys) in [(3, 3), (3, 5), (5, 3), (70, 70), (70, 130), (130, 70)] {
            let (q, k) = ([1, queries, 4], [1, keys, 4]);
            cases.push(case(of(2, causal), &[&q, &k, &k]));
        }
        cases.push(case(packed(2, causal), &[&[2, 3, 12]]));
        cases.push(case(packed(1, causal), &[&[1, 70, 6]]));
    }
    cases
}

fn windows() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kernel, stride, padding, shape) in [
        ([2, 2], [2, 2], [0, 0], [2, 2, 4, 5]),
        ([3, 3], [2, 2], [1, 1], [1, 2, 5, 6]),
        ([3, 2], [1, 2], [1, 0], [1, 2, 4, 4]),
        ([1, 1], [3, 2], [0, 0], [1, 1, 4, 4]),
    ] {
        let pool = Pool2d { kernel, stride, padding };
        cases.push(case(Op::MaxPool2d(pool), &[&shape]));
        cases.push(case(Op::AvgPool2d(pool), &[&shape]));
    }
    for counts in [[1, 1], [3, 2], [5, 5], [7, 8]] {
        cases.push(case(Op::AdaptiveAvgPool2d(counts), &[&[2, 2, 5, 5]]));
    }
    cases
}

fn reductions() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[2, 3, 4], &[0]),
        (&[2, 3, 4], &[1]),
        (&[2, 3, 4], &[2]),
        (&[2, 3, 4], &[2, 0]),
        (&[2, 3, 4], &[0, 1]),
        (&[2, 3, 4], &[1, 2, 0]),
        (&[2, 3, 2, 3], &[1, 3]),
        (&[2, 3, 2, 3], &[0, 2]),
        (&[3, 70], &[0]),
    ];
    for (shape, axes) in shapes {
        let axes = |keep| Axes { axes: axes.iter().copied().collect(), keep };
        cases.push(case(Op::SumAxes(axes(false)), &[shape]));
        cases.push(case(Op::MeanAxes(axes(true)), &[shape]));
        cases.push(case(Op::MaxAxes(axes(false)), &[shape]));
    }
    cases
}

fn places() -> Vec<Case> {
    let permute = |axes: &[usize]| Op::Permute(axes.iter().copied().collect());
    let slice = |axis, start, len| Op::Slice(Slice { axis, start, len });
    vec![
        case(permute(&[2, 0, 1]), &[&[2, 3, 4]]),
        case(permute(&[0, 2, 1, 3]), &[&[2, 3, 2, 2]]),
        case(permute(&[0]), &[&[3]]),
        case(permute(&[]), &[&[]]),
        case(slice(0, 1, 2), &[&[4, 3]]),
        case(slice(1, 2, 1), &[&[2, 3, 2]]),
        case(slice(1, 0, 3), &[&[2, 3]]),
        case(slice(1, 3, 0), &[&[2, 3]]),
        case(Op::Concat(0), &[&[2, 3], &[1, 3]]),
        case(Op::Concat(1), &[&[2, 1, 2], &[2, 3, 2], &[2, 0, 2], &[2, 2, 2]]),
        with(&[Param(0), Param(0)], case(Op::Concat(1), &[&[2, 3]])),
        masked(case(Op::GatherAxis(1), &[&[3, 4]]), &[2, 5], &[0, 3, 3, 1, 0, 2, 2, 2, 2, 0]),
        masked(case(Op::GatherAxis(0), &[&[3, 2, 2]]), &[4, 2, 1], &[0, 2, 2, 1, 0, 0, 1, 1]),
        masked(
            case(Op::ScatterAdd(ScatterAdd { axis: 1, len: 5 }), &[&[2, 3, 2]]),
            &[2, 3, 2],
            &[0, 4, 1, 4, 0, 3, 2, 2, 2, 2, 1, 0],
        ),
        masked(
            case(Op::ScatterAdd(ScatterAdd { axis: 0, len: 2 }), &[&[3, 2]]),
            &[3, 2],
            &[0, 1, 1, 1, 0, 1],
        ),
        Case {
            args: vec![Shaped(&[2, 3]), Param(0), Param(1)],
            index: vec![0, 1, -1, 7, 0, 0],
            ..case(Op::Where, &[&[2, 3], &[2, 3]])
        },
    ]
}

fn functions() -> Vec<Case> {
    let shape: &[&[usize]] = &[&[3, 7]];
    let mut cases: Vec<_> = [
        Op::AddScalar(1.5),
        Op::Abs,
        Op::Clamp(Clamp { min: -1.1, max: 0.9 }),
        Op::Sigmoid,
        Op::Tanh,
        Op::Gelu,
        Op::GeluTanh,
        Op::Silu,
        Op::Pow(0.0),
        Op::Pow(1.0),
        Op::Pow(2.0),
        Op::Pow(3.0),
        Op::Pow(4.0),
        Op::Pow(-1.0),
    ]
    .map(|op| case(op, shape))
    .into();
    for op in [Op::Sqrt, Op::Pow(0.5), Op::Pow(2.5), Op::Pow(-1.5)] {
        cases.push(Case { positive: true, ..case(op, shape) });
    }
    cases
}
