//! What a loss may be made of: each operation through a real component, its values and gradients those of its formula,
//! computed here in f64.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::operations::{Case, Component, case};
use lockstep_sandbox::BuiltLoss;
use lockstep_tensor::{Accumulate, GradBuffer, Layout, Replay, Tape};
use serde_json::json;

/// All different, none at a bend of a formula; where they must be positive, they are.
fn numbers(name: &str, op: &str, len: usize) -> Vec<f64> {
    let step = |i: usize| ((i * 37 + 5) % 101) as f64;
    let of = |i: usize| match (name, op) {
        ("x", "sqrt" | "pow") => 0.3 + step(i) / 40.0,
        ("x", _) => step(i) / 25.0 - 2.01,
        ("t", _) => (step(i + 3) + 1.0) / 110.0,
        _ => 0.5 + step(i + 7) / 70.0,
    };
    (0..len).map(of).collect()
}

/// Result, and the gradients of `x` and `t` for `w` as the result's: what the recorded loss gives.
fn replay(loss: &BuiltLoss, case: &Case, x: &[f64], t: &[f64], w: &[f64]) -> [Vec<f64>; 3] {
    let named = [("x", case.x), ("t", case.t), ("w", case.result)];
    let named = named.map(|(name, shape)| (name.to_owned(), shape.to_vec()));
    let layout = Arc::new(Layout::new(named.to_vec()).unwrap());
    let range = |name| layout.params()[layout.id(name).unwrap().0].range.clone();
    let mut weights = vec![0.0; layout.len()];
    for (name, given) in [("x", x), ("t", t), ("w", w)] {
        weights[range(name)].copy_from_slice(given);
    }
    let mut tape = Tape::<f64>::new(Arc::clone(&layout));
    let index = tape.index(case.index.0, case.index.1).unwrap();
    let [x, t, w] = ["x", "t", "w"].map(|name| (name, tape.param(layout.id(name).unwrap())));
    let mut replay = Replay::default();
    loss.recipe.replay(&mut tape, &[x, t, w, ("index", index)], &weights, &mut replay).unwrap();
    let mut gradients = GradBuffer::new(Arc::clone(&layout));
    let seeds: [(_, &[f64]); 1] = [(replay.outputs()[0], &[1.0])];
    tape.backward(&seeds, &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    // The loss is Σ w result: its gradient by w is the result.
    ["w", "x", "t"].map(|name| gradients.values()[range(name)].to_vec())
}

fn check(component: &Component, case: &Case) {
    let op = case.config["op"].as_str().unwrap();
    let loss = component.build(case).unwrap_or_else(|error| panic!("{}: {error}", case.config));
    let len = |shape: &[usize]| shape.iter().product();
    let [x, t, w] = [("x", case.x), ("t", case.t), ("w", case.result)]
        .map(|(name, shape)| numbers(name, op, len(shape)));
    let [result, of_x, of_t] = replay(&loss, case, &x, &t, &w);
    let total = |x: &[f64], t: &[f64]| -> f64 {
        (case.formula)(x, t).iter().zip(&w).map(|(result, w)| result * w).sum()
    };
    let by_difference = |at: usize, moves_x: bool| {
        let step = 1e-5;
        let moved = |by: f64| {
            let (mut x, mut t) = (x.clone(), t.clone());
            (if moves_x { &mut x } else { &mut t })[at] += by;
            total(&x, &t)
        };
        (moved(step) - moved(-step)) / (2.0 * step)
    };
    let agree = |what: &str, found: &[f64], expected: &[f64], error: f64| {
        let near = |(found, expected): (&f64, &f64)| (found - expected).abs() < error;
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(near),
            "{}: the {what} is {found:?}, expected {expected:?}",
            case.config
        );
    };
    agree("result", &result, &(case.formula)(&x, &t), 1e-12);
    let expected: Vec<f64> = (0..x.len()).map(|at| by_difference(at, true)).collect();
    agree("gradient of x", &of_x, &expected, 1e-8);
    let expected: Vec<f64> = (0..t.len()).map(|at| by_difference(at, false)).collect();
    agree("gradient of t", &of_t, &expected, 1e-8);
}

fn each(x: &[f64], of: impl Fn(f64) -> f64) -> Vec<f64> {
    x.iter().map(|&x| of(x)).collect()
}

fn pairs(x: &[f64], t: &[f64], of: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    x.iter().zip(t).map(|(&x, &t)| of(x, t)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Of the normal distribution, by its series about 0.
fn normal(x: f64) -> f64 {
    let (mut term, mut sum) = (x, 0.0);
    for n in 0..80 {
        sum += term / f64::from(2 * n + 1);
        term *= -x * x / (2.0 * f64::from(n + 1));
    }
    0.5 + sum / std::f64::consts::TAU.sqrt()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let sum: f64 = row.iter().map(|x| x.exp()).sum();
    each(row, |x| x.exp() / sum)
}

/// Of three classes; what the smoothing spreads is spread over all of them.
fn cross_entropy(row: &[f64], label: usize, smoothing: f64) -> f64 {
    let surprise = each(&softmax(row), |p| -p.ln());
    (1.0 - smoothing) * surprise[label] + smoothing * surprise.iter().sum::<f64>() / 3.0
}

#[test]
fn functions_of_each_element_are_their_formulas() {
    let component = Component::new();
    let cases = [
        case(json!({"op": "add_scalar", "numbers": ["1.5"]}), |x, _| each(x, |x| x + 1.5)),
        case(json!({"op": "sqrt"}), |x, _| each(x, f64::sqrt)),
        case(json!({"op": "abs"}), |x, _| each(x, f64::abs)),
        case(json!({"op": "pow", "numbers": ["2.5"]}), |x, _| each(x, |x| x.powf(2.5))),
        case(json!({"op": "clamp", "numbers": ["-0.4", "0.65"]}), |x, _| {
            each(x, |x| x.clamp(-0.4, 0.65))
        }),
        case(json!({"op": "clamp", "numbers": ["-inf", "0.65"]}), |x, _| each(x, |x| x.min(0.65))),
        case(json!({"op": "sigmoid"}), |x, _| each(x, sigmoid)),
        case(json!({"op": "tanh"}), |x, _| each(x, f64::tanh)),
        case(json!({"op": "gelu"}), |x, _| each(x, |x| x * normal(x))),
        case(json!({"op": "gelu_tanh"}), |x, _| {
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            each(x, |x| 0.5 * x * (1.0 + (slope * (x + 0.044715 * x.powi(3))).tanh()))
        }),
        case(json!({"op": "silu"}), |x, _| each(x, |x| x * sigmoid(x))),
    ];
    cases.iter().for_each(|case| check(&component, case));
}

#[test]
fn losses_of_rows_and_elements_are_their_formulas() {
    let component = Component::new();
    let rows = |config, formula| Case { result: &[2], ..case(config, formula) };
    let cases = [
        case(json!({"op": "softmax"}), |x, _| x.chunks(3).flat_map(softmax).collect()),
        rows(json!({"op": "cross_entropy", "numbers": ["0"]}), |x, _| {
            vec![cross_entropy(&x[..3], 2, 0.0), cross_entropy(&x[3..], 0, 0.0)]
        }),
        rows(json!({"op": "cross_entropy", "numbers": ["0.1"], "ignore": 0}), |x, _| {
            vec![cross_entropy(&x[..3], 2, 0.1), 0.0]
        }),
        Case {
            index: (&[2], &[-100, 1]),
            ..rows(json!({"op": "cross_entropy", "numbers": ["1"], "ignore": -100}), |x, _| {
                vec![0.0, cross_entropy(&x[3..], 1, 1.0)]
            })
        },
        case(json!({"op": "mse_loss"}), |x, t| pairs(x, t, |x, t| (x - t).powi(2))),
        case(json!({"op": "bce_with_logits"}), |x, t| {
            pairs(x, t, |x, t| -t * sigmoid(x).ln() - (1.0 - t) * (1.0 - sigmoid(x)).ln())
        }),
        case(json!({"op": "kl_div"}), |x, t| pairs(x, t, |x, t| t * (t.ln() - x))),
    ];
    cases.iter().for_each(|case| check(&component, case));
}

#[test]
fn reductions_along_axes_are_their_formulas() {
    let component = Component::new();
    let of = |config, result, formula| Case { x: &[2, 3, 2], result, ..case(config, formula) };
    let cases = [
        // Along the outer two: what is left is along the last.
        of(json!({"op": "sum_axes", "axes": [1, 0]}), &[2], |x, _| {
            (0..2).map(|k| (0..6).map(|row| x[2 * row + k]).sum()).collect()
        }),
        of(json!({"op": "sum_axes", "axes": [2], "keep": true}), &[2, 3, 1], |x, _| {
            x.chunks(2).map(|pair| pair[0] + pair[1]).collect()
        }),
        of(json!({"op": "mean_axes", "axes": [1]}), &[2, 2], |x, _| {
            let mean = |at: usize| (x[at] + x[at + 2] + x[at + 4]) / 3.0;
            [0, 1, 6, 7].map(mean).to_vec()
        }),
        of(json!({"op": "max_axes", "axes": [0, 2], "keep": true}), &[1, 3, 1], |x, _| {
            let max = |at: usize| x[at].max(x[at + 1]).max(x[at + 6]).max(x[at + 7]);
            [0, 2, 4].map(max).to_vec()
        }),
    ];
    cases.iter().for_each(|case| check(&component, case));
}

#[test]
fn elements_are_picked_and_moved_where_the_formulas_say() {
    let component = Component::new();
    let cases = [
        Case {
            index: (&[2, 2], &[2, 2, 0, 1]),
            result: &[2, 2],
            ..case(json!({"op": "gather_axis", "axes": [1]}), |x, _| vec![x[2], x[2], x[3], x[4]])
        },
        Case {
            index: (&[2, 3], &[3, 0, 3, 1, 1, 2]),
            result: &[2, 4],
            ..case(json!({"op": "scatter_add", "axes": [1, 4]}), |x, _| {
                vec![x[1], 0.0, 0.0, x[0] + x[2], 0.0, x[3] + x[4], x[5], 0.0]
            })
        },
        Case {
            index: (&[2, 3], &[1, 0, -5, 0, 0, 2]),
            ..case(json!({"op": "where"}), |x, t| vec![x[0], t[1], x[2], t[3], t[4], x[5]])
        },
        Case {
            x: &[2, 1, 3],
            result: &[3, 2, 1],
            ..case(json!({"op": "permute", "axes": [2, 0, 1]}), |x, _| {
                [0, 3, 1, 4, 2, 5].map(|at: usize| x[at]).to_vec()
            })
        },
        Case {
            x: &[2, 2, 3],
            result: &[2, 3, 2],
            ..case(json!({"op": "transpose"}), |x, _| {
                [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11].map(|at: usize| x[at]).to_vec()
            })
        },
        Case {
            result: &[2, 2],
            ..case(json!({"op": "slice", "axes": [1, 1, 2]}), |x, _| vec![x[1], x[2], x[4], x[5]])
        },
        Case {
            t: &[2, 1],
            result: &[2, 4],
            ..case(json!({"op": "concat", "axes": [1]}), |x, t| {
                [&x[..3], &t[..1], &x[3..], &t[1..]].concat()
            })
        },
    ];
    cases.iter().for_each(|case| check(&component, case));
}
