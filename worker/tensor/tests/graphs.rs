//! Drawn graphs: gradients are right and reported once, however values are shared.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{collections::BTreeSet, sync::Arc};

use lockstep_tensor::{Accumulate, GradBuffer, Layout, Op, Tape, Value};
use proptest::prelude::*;

const PARAMS: usize = 4;
const SHAPE: [usize; 2] = [2, 3];

/// One operation of a drawn graph; inputs are taken modulo what is there so far.
#[derive(Debug, Clone)]
struct Draw {
    op: Op,
    inputs: (usize, usize),
}

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    // Kinks and poles are left out: differences say nothing there.
    let op = prop_oneof![
        Just(Op::Add),
        Just(Op::Sub),
        Just(Op::Mul),
        Just(Op::Neg),
        Just(Op::Scale(0.5)),
        Just(Op::LogSoftmax),
        Just(Op::Detach),
    ];
    let draw =
        (op, any::<usize>(), any::<usize>()).prop_map(|(op, a, b)| Draw { op, inputs: (a, b) });
    proptest::collection::vec(draw, 1..12)
}

fn layout() -> Arc<Layout> {
    let params = (0..PARAMS).map(|i| (i.to_string(), SHAPE.to_vec())).collect();
    Arc::new(Layout::new(params).unwrap())
}

/// Records a drawn graph. With `frozen`, detached values are taken from there and not computed anew.
fn record(
    tape: &mut Tape<f64>,
    draws: &[Draw],
    weights: &[f64],
    frozen: Option<&[Vec<f64>]>,
) -> Vec<Value> {
    let ids: Vec<_> = tape.layout().ids().collect();
    let mut values: Vec<_> = ids.into_iter().map(|id| tape.param(id)).collect();
    for (place, Draw { op, inputs }) in draws.iter().enumerate() {
        let pick = |i: usize| values[i % values.len()];
        let inputs = [pick(inputs.0), pick(inputs.1)];
        let value = match (op, frozen) {
            (Op::Detach, Some(frozen)) => tape.input(&SHAPE, &frozen[place]).unwrap(),
            _ => tape.apply(op.clone(), &inputs[..*op.arity().end()], weights).unwrap(),
        };
        values.push(value);
    }
    values.split_off(PARAMS)
}

proptest! {
    #[test]
    fn gradients_of_drawn_graphs_are_right_and_each_is_reported_once(
        draws in draws(),
        weights in proptest::collection::vec(-1.0_f64..1.0, PARAMS * 6),
        direction in proptest::collection::vec(-1.0_f64..1.0, PARAMS * 6),
    ) {
        let layout = layout();
        let mut tape = Tape::new(Arc::clone(&layout));
        let values = record(&mut tape, &draws, &weights, None);
        let out = *values.last().unwrap();
        let frozen: Vec<_> = values.iter().map(|&v| tape.values(v).unwrap().to_vec()).collect();
        let mut gradients = GradBuffer::new(Arc::clone(&layout));
        gradients.values_mut().fill(f64::NAN);
        let ones = [1.0; 6];
        tape.backward(&[(out, &ones)], &weights, Accumulate::Overwrite, &mut gradients).unwrap();

        let ready = gradients.ready_order();
        let distinct: BTreeSet<_> = ready.iter().collect();
        prop_assert_eq!((ready.len(), distinct.len()), (PARAMS, PARAMS));

        let mut along = |h: f64| {
            let moved: Vec<_> = weights.iter().zip(&direction).map(|(w, d)| w + h * d).collect();
            tape.clear();
            let values = record(&mut tape, &draws, &moved, Some(&frozen));
            tape.values(*values.last().unwrap()).unwrap().iter().sum::<f64>()
        };
        let h = 1e-6;
        let (up, down) = (along(h), along(-h));
        let difference = (up - down) / (2.0 * h);
        let product: f64 = gradients.values().iter().zip(&direction).map(|(g, d)| g * d).sum();
        // Rounding of the two values over the step, and relative to the gradient itself. Graphs of
        // repeated squares grow without bound and are left out.
        prop_assume!(up.abs() < 1e3 && product.abs() < 1e3);
        let bound = 1e-5 * (1.0 + up.abs() + product.abs());
        prop_assert!((difference - product).abs() < bound, "{} {}", difference, product);
    }
}
