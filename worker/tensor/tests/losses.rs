//! Where formulas of losses and of dropout are easily wrong: ignored rows, great logits, masks.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, CrossEntropy, Dropout, GradBuffer, Layout, Op, OpError, Real, Tape,
};

/// Result and gradient of an operation on a parameter x of that shape and, if there are any, integers;
/// the gradient of the result is all ones.
fn run<T: Real>(op: Op, shape: &[usize], x: &[T], ints: &[i64]) -> Result<[Vec<T>; 2], OpError> {
    let layout = Arc::new(Layout::new(vec![("x".to_owned(), shape.to_vec())]).unwrap());
    let mut tape = Tape::new(Arc::clone(&layout));
    let id = layout.id("x").unwrap();
    let mut inputs = vec![tape.param(id)];
    if !ints.is_empty() {
        inputs.push(tape.index(&[ints.len()], ints)?);
    }
    let y = tape.apply(op, &inputs, x)?;
    let values = tape.values(y)?.to_vec();
    let mut gradients = GradBuffer::new(layout);
    let ones = vec![T::ONE; values.len()];
    tape.backward(&[(y, &ones)], x, Accumulate::Overwrite, &mut gradients)?;
    Ok([values, gradients.values().to_vec()])
}

/// Result of an operation on two inputs.
fn pair(op: Op, x: &[f32], t: &[f32]) -> Vec<f32> {
    let mut tape = Tape::new(Arc::new(Layout::new(Vec::new()).unwrap()));
    let x = tape.input(&[x.len()], x).unwrap();
    let t = tape.input(&[t.len()], t).unwrap();
    let y = tape.apply(op, &[x, t], &[]).unwrap();
    tape.values(y).unwrap().to_vec()
}

fn cross_entropy(label_smoothing: f64, ignore_index: Option<i64>) -> Op {
    Op::CrossEntropy(CrossEntropy { label_smoothing, ignore_index })
}

#[test]
fn ignored_rows_have_no_loss_and_no_gradient_whatever_is_in_them() {
    let x = [f32::NAN, 1.0, 0.0, 0.0];
    for smoothing in [0.0, 0.1] {
        let op = cross_entropy(smoothing, Some(-100));
        let [loss, gradient] = run(op, &[2, 2], &x, &[-100, 1]).unwrap();
        assert_eq!(loss, [0.0, std::f32::consts::LN_2]);
        assert_eq!(gradient[..2], [0.0, 0.0]);
        let half = 0.5 - 0.5 * smoothing as f32;
        assert!((gradient[2] - half).abs() < 1e-6 && (gradient[3] + half).abs() < 1e-6);
    }
}

#[test]
fn a_target_that_is_no_class_is_named_by_row() {
    let x = [0.0_f32; 6];
    for (ignored, targets) in [(None, [0, -100, 1]), (Some(-100), [1, 2, -100]), (None, [0, 2, 0])]
    {
        let error = run(cross_entropy(0.1, ignored), &[3, 2], &x, &targets).unwrap_err();
        let index = targets[1];
        let expected = OpError::IndexOutOfRange { op: "cross_entropy", row: 1, index, len: 2 };
        assert_eq!(error, expected);
    }
    let error = run(Op::Embedding, &[3, 2], &x, &[0, 3]).unwrap_err();
    assert_eq!(error, OpError::IndexOutOfRange { op: "embedding", row: 1, index: 3, len: 3 });
    assert!(run(Op::Embedding, &[3, 2], &x, &[-1]).is_err());
}

#[test]
fn great_logits_neither_overflow_nor_lose_the_small_part() {
    let x = [1e4_f32, -1e4, -1e4, 1e4];
    let [loss, gradient] = run(cross_entropy(0.0, None), &[2, 2], &x, &[0, 0]).unwrap();
    assert_eq!((loss, gradient), (vec![0.0, 2e4], vec![0.0, 0.0, -1.0, 1.0]));
    let x = [f32::NEG_INFINITY, 0.0, 0.0];
    let [loss, gradient] = run(cross_entropy(0.0, None), &[1, 3], &x, &[1]).unwrap();
    assert_eq!((loss, gradient[0]), (vec![std::f32::consts::LN_2], 0.0));

    let (x, t) = ([200.0, -200.0, 30.0, -30.0, 0.0], [1.0, 0.0, 1.0, 0.0, 0.25]);
    let loss = pair(Op::BceWithLogits, &x, &t);
    let small = (-30.0_f64).exp().ln_1p() as f32;
    assert_eq!(loss[4], std::f32::consts::LN_2);
    assert!(loss[0] < 1e-38 && loss[1] < 1e-38);
    assert!((loss[2] / small - 1.0).abs() < 1e-6 && (loss[3] / small - 1.0).abs() < 1e-6);
    assert_eq!(pair(Op::BceWithLogits, &[200.0, -200.0], &[0.0, 1.0]), [200.0, 200.0]);
}

#[test]
fn a_row_with_nan_becomes_nan_and_the_others_stay() {
    for op in [Op::Softmax, Op::LogSoftmax] {
        let mut x = vec![0.5_f32; 80];
        x[57] = f32::NAN;
        let [y, _] = run(op, &[2, 40], &x, &[]).unwrap();
        assert!(y[..40].iter().all(|y| y.is_finite()) && y[40..].iter().all(|y| y.is_nan()));
    }
    let [loss, _] = run(cross_entropy(0.0, None), &[1, 3], &[0.0, 0.0, f32::NAN], &[0]).unwrap();
    assert!(loss[0].is_nan());
    assert!(pair(Op::BceWithLogits, &[f32::NAN], &[1.0])[0].is_nan());
}

#[test]
fn a_target_without_probability_adds_nothing_to_a_divergence() {
    let loss = pair(Op::KlDiv, &[f32::NEG_INFINITY, 0.0, -1.0], &[0.0, 1.0, 0.5]);
    assert_eq!(loss, [0.0, 0.0, 0.5 * (0.5_f32.ln() + 1.0)]);
}

fn dropped(p: f64, seed: u64, len: usize) -> Vec<f64> {
    let x = vec![1.0; len];
    let [y, gradient] = run(Op::Dropout(Dropout { p, seed }), &[len], &x, &[]).unwrap();
    assert_eq!(y, gradient, "backward draws another mask");
    y
}

#[test]
fn dropout_drops_the_asked_share_and_scales_the_rest() {
    let len = 100_001;
    for p in [0.1, 0.5, 0.75] {
        let y = dropped(p, 7, len);
        let kept = y.iter().filter(|&&y| y == 1.0 / (1.0 - p)).count();
        let zeros = y.iter().filter(|&&y| y == 0.0).count();
        assert_eq!(kept + zeros, len);
        // Four standard deviations.
        let gap = (zeros as f64 - p * len as f64).abs();
        assert!(gap < 4.0 * (p * (1.0 - p) * len as f64).sqrt(), "{p}: {zeros}");
        // Neighbours fall together as often as chance has it, whether they share a number or not.
        for start in [0, 1] {
            let pairs = y[start..].chunks_exact(2);
            let (count, both) = (pairs.len() as f64, pairs.filter(|y| y == &[0.0, 0.0]).count());
            let gap = (both as f64 - p * p * count).abs();
            assert!(gap < 4.0 * (p * p * count).sqrt(), "{p}: {both} pairs");
        }
    }
    assert_eq!(dropped(0.0, 7, 50), [1.0; 50]);
    assert_eq!(dropped(1.0, 7, 50), [0.0; 50]);
}

#[test]
fn a_mask_depends_on_seed_and_place_alone() {
    let mask = dropped(0.5, 1, 100);
    assert_eq!(mask[..77], dropped(0.5, 1, 77));
    assert_ne!(mask, dropped(0.5, 2, 100));
}

#[test]
fn dropout_hides_no_nan() {
    let op = Op::Dropout(Dropout { p: 1.0, seed: 0 });
    let [y, _] = run(op, &[1], &[f32::NAN], &[]).unwrap();
    assert!(y[0].is_nan());
}
