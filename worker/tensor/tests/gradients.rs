//! Every operation's backward against finite differences of its forward, in f64.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "structural_cases/gradients.rs"]
mod structural;

use std::{collections::BTreeSet, sync::Arc};

use lockstep_tensor::{
    Accumulate, Activation, BatchNorm, Conv2d, CrossEntropy, Dropout, GradBuffer, LayerNorm,
    Layout, Op, RmsNorm, Tape, Value, init::Stream,
};

/// Error of a central difference with this step: about h² plus 1e-16 / h.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;

/// Operations without a gradient; what they cut off is tested in `tape.rs`.
const NO_GRADIENT: [&str; 4] = ["argmax", "equal", "to_float", "detach"];

/// A stair: differences say nothing. Its gradient is tested in `structural.rs`.
const STAIRS: [&str; 1] = ["cast"];

#[derive(Clone, Copy)]
enum Arg {
    /// A parameter of the case, by number.
    Param(usize),
    /// The case's index tensor, along one axis.
    Index,
    /// The case's index tensor in that shape.
    Shaped(&'static [usize]),
}
use Arg::{Index, Param, Shaped};

struct Case {
    op: Op,
    params: Vec<Vec<usize>>,
    args: Vec<Arg>,
    index: Vec<i64>,
    /// Values are drawn from 0.3 to 1.7 in absolute value, away from kinks and poles.
    positive: bool,
}

fn case(op: Op, params: &[&[usize]]) -> Case {
    let params: Vec<_> = params.iter().map(|shape| shape.to_vec()).collect();
    let args = (0..params.len()).map(Param).collect();
    Case { op, params, args, index: Vec::new(), positive: false }
}

fn cases() -> Vec<Case> {
    let mut cases = vec![
        case(Op::Linear(Activation::None), &[&[4, 3], &[5, 3], &[5]]),
        case(Op::Linear(Activation::None), &[&[2, 2, 3], &[5, 3], &[5]]),
        case(Op::Linear(Activation::None), &[&[4, 3], &[5, 3]]),
        case(Op::Linear(Activation::None), &[&[1, 1], &[1, 1], &[1]]),
        case(Op::Linear(Activation::None), &[&[20, 33], &[17, 33], &[17]]),
        Case { args: vec![Param(0), Param(0)], ..case(Op::Linear(Activation::None), &[&[3, 3]]) },
        case(Op::Affine(Activation::None), &[&[4, 3], &[3, 5], &[5]]),
        case(Op::Affine(Activation::GeluTanh), &[&[2, 2, 3], &[3, 5]]),
        case(Op::MatMul, &[&[4, 3], &[3, 5]]),
        Case { args: vec![Param(0), Param(0)], ..case(Op::MatMul, &[&[3, 3]]) },
        case(Op::Neg, &[&[2, 3]]),
        case(Op::Scale(-2.5), &[&[2, 3]]),
        case(Op::Exp, &[&[2, 3]]),
        Case { positive: true, ..case(Op::Log, &[&[2, 3]]) },
        case(Op::Relu, &[&[5, 7]]),
        case(Op::LogSoftmax, &[&[4, 5]]),
        case(Op::LogSoftmax, &[&[2, 3, 4]]),
        case(Op::LogSoftmax, &[&[6]]),
        Case {
            args: vec![Param(0), Index],
            index: vec![2, 0, 1, 2],
            ..case(Op::Gather, &[&[4, 3]])
        },
        case(Op::Sum, &[&[3, 7]]),
        case(Op::Sum, &[&[]]),
        case(Op::Mean, &[&[3, 7]]),
        case(Op::Reshape([3, 4].into_iter().collect()), &[&[2, 6]]),
    ];
    let plain = Conv2d::default();
    for (settings, x, w) in [
        (plain, [2, 3, 5, 4], [4, 3, 3, 2]),
        (Conv2d { padding: [1, 2], relu: true, ..plain }, [1, 2, 4, 4], [3, 2, 3, 3]),
        (Conv2d { stride: [2, 3], padding: [1, 1], ..plain }, [2, 2, 6, 7], [2, 2, 3, 3]),
        (Conv2d { dilation: [2, 1], ..plain }, [1, 2, 7, 3], [2, 2, 3, 2]),
        (Conv2d { groups: 2, padding: [1, 1], ..plain }, [2, 4, 3, 3], [6, 2, 3, 3]),
        (Conv2d { stride: [2, 2], ..plain }, [2, 3, 5, 5], [4, 3, 1, 1]),
    ] {
        cases.push(case(Op::Conv2d(settings), &[&x, &w, &[w[0]]]));
        cases.push(case(Op::Conv2d(settings), &[&x, &w]));
    }
    for activation in [Activation::Relu, Activation::Gelu, Activation::GeluTanh] {
        cases.push(case(Op::Linear(activation), &[&[4, 3], &[5, 3], &[5]]));
        cases.push(case(Op::Linear(activation), &[&[20, 33], &[17, 33]]));
    }
    for op in [Op::Add, Op::Sub, Op::Mul, Op::Div] {
        let shapes: [(&[usize], &[usize]); 10] = [
            (&[2, 3], &[2, 3]),
            (&[2, 3], &[]),
            (&[], &[2, 3]),
            (&[2, 2, 3], &[3]),
            (&[3], &[4, 3]),
            (&[4, 1], &[1]),
            (&[1], &[]),
            (&[], &[]),
            (&[3, 1, 2], &[4, 1]),
            (&[2, 1, 1], &[2, 3, 2]),
        ];
        cases.extend(shapes.map(|(a, b)| case(op.clone(), &[a, b])));
        cases.push(Case { args: vec![Param(0), Param(0)], ..case(op, &[&[2, 3]]) });
    }
    cases.extend(norms());
    cases.extend(losses());
    cases
}

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for relu in [false, true] {
        let batch = Op::BatchNorm(BatchNorm { eps: 1e-3, relu });
        let given = Op::BatchNormInference(BatchNorm { eps: 1e-3, relu });
        let shapes: [&[usize]; 4] = [&[3, 2, 2, 3], &[5, 3], &[4, 2, 19], &[2, 1, 1030]];
        for x in shapes {
            let c = &x[1..2];
            cases.push(case(batch.clone(), &[x, c, c]));
            cases.push(case(batch.clone(), &[x, c, c, x]));
            for inputs in [vec![x, c, c, c, c], vec![x, c, c, c, c, x]] {
                cases.push(Case { positive: true, ..case(given.clone(), &inputs) });
            }
        }
        let args = vec![Param(0), Param(1), Param(1), Param(0)];
        cases.push(Case { args, ..case(batch, &[&[4, 2, 3], &[2]]) });
    }
    for x in [&[4, 5], &[1, 33], &[70, 3]] as [&[usize]; 3] {
        let d = &x[1..];
        cases.push(case(Op::LayerNorm(LayerNorm { eps: 1e-3 }), &[x, d, d]));
        cases.push(case(Op::RmsNorm(RmsNorm { eps: 1e-3 }), &[x, d]));
    }
    cases.push(case(Op::LayerNorm(LayerNorm { eps: 1e-3 }), &[&[2, 3, 4], &[4], &[4]]));
    cases.push(case(Op::LayerNorm(LayerNorm { eps: 1e-3 }), &[&[5], &[5], &[5]]));
    cases.push(case(Op::RmsNorm(RmsNorm { eps: 1e-3 }), &[&[2, 3, 70], &[70]]));
    cases
}

fn losses() -> Vec<Case> {
    let with_index = |op, index: &[i64], shape: &[usize]| Case {
        args: vec![Param(0), Index],
        index: index.to_vec(),
        ..case(op, &[shape])
    };
    let mut cases = vec![
        case(Op::Softmax, &[&[4, 5]]),
        case(Op::Softmax, &[&[2, 3, 20]]),
        case(Op::Softmax, &[&[6]]),
        with_index(Op::Embedding, &[2, 0, 2, 2, 1], &[4, 3]),
        case(Op::Dropout(Dropout { p: 0.4, seed: 3 }), &[&[5, 15]]),
    ];
    for label_smoothing in [0.0, 0.3] {
        for ignore_index in [None, Some(2)] {
            let op = Op::CrossEntropy(CrossEntropy { label_smoothing, ignore_index });
            cases.push(with_index(op.clone(), &[2, 0, 1, 2], &[4, 3]));
            cases.push(with_index(op, &[39, 2], &[2, 40]));
        }
    }
    for op in [Op::MseLoss, Op::BceWithLogits] {
        cases.push(case(op.clone(), &[&[3, 7], &[3, 7]]));
        cases.push(Case { args: vec![Param(0), Param(0)], ..case(op, &[&[3, 2]]) });
    }
    cases.push(Case { positive: true, ..case(Op::KlDiv, &[&[3, 7], &[3, 7]]) });
    cases.extend(structural::cases());
    cases
}

impl Case {
    fn layout(&self) -> Arc<Layout> {
        let named = self.params.iter().enumerate();
        Arc::new(Layout::new(named.map(|(i, s)| (i.to_string(), s.clone())).collect()).unwrap())
    }

    fn weights(&self, layout: &Layout) -> Vec<f64> {
        let (size, sign) = (Stream::new(1, "size"), Stream::new(1, "sign"));
        (0..layout.len() as u64)
            .map(|i| {
                let size = 0.3 + 1.4 * size.fraction(i);
                if self.positive || 0.5 < sign.fraction(i) { size } else { -size }
            })
            .collect()
    }

    fn record(&self, tape: &mut Tape<f64>, weights: &[f64]) -> Value {
        let inputs: Vec<_> = self
            .args
            .iter()
            .map(|arg| match *arg {
                Param(i) => {
                    let id = tape.layout().id(&i.to_string()).unwrap();
                    tape.param(id)
                }
                Index => tape.index(&[self.index.len()], &self.index).unwrap(),
                Shaped(shape) => tape.index(shape, &self.index).unwrap(),
            })
            .collect();
        tape.apply(self.op.clone(), &inputs, weights).unwrap()
    }

    /// Σ seed · output.
    fn value(&self, tape: &mut Tape<f64>, weights: &[f64]) -> f64 {
        tape.clear();
        let out = self.record(tape, weights);
        let out = tape.values(out).unwrap();
        seed(out.len()).iter().zip(out).map(|(s, y)| s * y).sum()
    }

    fn gradient(&self, weights: &[f64], accumulate: Accumulate, start: f64) -> Vec<f64> {
        let layout = self.layout();
        let mut tape = Tape::new(Arc::clone(&layout));
        let out = self.record(&mut tape, weights);
        let seed = seed(tape.values(out).unwrap().len());
        let mut gradients = GradBuffer::new(layout);
        gradients.values_mut().fill(start);
        tape.backward(&[(out, &seed)], weights, accumulate, &mut gradients).unwrap();
        gradients.values().to_vec()
    }

    fn label(&self) -> String {
        format!("{} of {:?}", self.op.name(), self.params)
    }
}

fn seed(len: usize) -> Vec<f64> {
    let stream = Stream::new(2, "seed");
    (0..len as u64).map(|i| 2.0 * stream.fraction(i) - 1.0).collect()
}

#[test]
fn every_operation_is_checked_here_or_has_no_gradient() {
    let checked = cases().into_iter().inspect(|case| assert!(case.op.has_gradient()));
    let mut seen: BTreeSet<_> = checked.map(|case| case.op.name()).collect();
    for name in NO_GRADIENT.into_iter().chain(STAIRS) {
        assert!(seen.insert(name), "{name} is listed as not to be checked, and is");
    }
    assert_eq!(seen, Op::NAMES.iter().copied().collect());
}

#[test]
fn gradients_equal_directional_differences_for_each_parameter_and_for_all_together() {
    for case in cases() {
        let layout = case.layout();
        let weights = case.weights(&layout);
        let gradient = case.gradient(&weights, Accumulate::Overwrite, f64::NAN);
        let mut tape = Tape::new(Arc::clone(&layout));
        let ranges = layout.params().iter().map(|param| param.range.clone());
        for range in ranges.chain(std::iter::once(0..layout.len())) {
            for round in 0..3 {
                let stream = Stream::new(3 + round, "direction");
                let mut direction = vec![0.0; layout.len()];
                for i in range.clone() {
                    direction[i] = 2.0 * stream.fraction(i as u64) - 1.0;
                }
                let mut along = |h: f64| {
                    let moved: Vec<_> =
                        weights.iter().zip(&direction).map(|(w, d)| w + h * d).collect();
                    case.value(&mut tape, &moved)
                };
                let difference = (along(STEP) - along(-STEP)) / (2.0 * STEP);
                let product: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
                let gap = (difference - product).abs() / (1.0 + difference.abs());
                assert!(gap < TOLERANCE, "{} {range:?}: {difference} {product}", case.label());
            }
        }
    }
}

#[test]
fn adding_gives_the_overwritten_gradient_plus_what_was_there() {
    for case in cases() {
        let weights = case.weights(&case.layout());
        let fresh = case.gradient(&weights, Accumulate::Overwrite, 7.0);
        let added = case.gradient(&weights, Accumulate::Add, 7.0);
        for (fresh, added) in fresh.iter().zip(&added) {
            assert!((fresh + 7.0 - added).abs() < 1e-12, "{}: {fresh} {added}", case.label());
        }
    }
}
