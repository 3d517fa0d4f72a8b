//! A layer that only one rank uses.

use std::sync::Arc;

use lockstep_ddp::{GrainSums, Reduction, Votes};
use lockstep_tensor::{Activation, Layout, Op, Tape};

use crate::{recorded::ranks, threads::on_ranks};

#[test]
fn a_layer_that_one_rank_uses_has_half_of_its_gradient() {
    let recorded = ranks();
    let names = ["a.weight", "a.bias", "b.weight", "b.bias"];
    let shape = |name: &str| recorded[0].shape(&format!("unused.param.{name}")).to_vec();
    let params = names.map(|name| (name.to_owned(), shape(name)));
    let layout = Arc::new(Layout::new(params.to_vec()).unwrap());
    let all = on_ranks(&layout, Reduction::Fast, |rank, reducer| {
        let floats = |name: &str| -> Vec<f32> {
            recorded[rank].values(name).iter().map(|x| *x as f32).collect()
        };
        let mut weights = vec![0.0; layout.len()];
        for param in layout.params() {
            let start = floats(&format!("unused.param.{}", param.name));
            weights[param.range.clone()].copy_from_slice(&start);
        }
        let mut tape = Tape::new(Arc::clone(&layout));
        let shape = recorded[rank].shape("unused.input");
        let mut y = tape.input(shape, &floats("unused.input")).unwrap();
        for layer in if rank == 0 { &["a", "b"][..] } else { &["a"] } {
            let [w, b] = ["weight", "bias"]
                .map(|kind| tape.param(layout.id(&format!("{layer}.{kind}")).unwrap()));
            y = tape.apply(Op::Linear(Activation::None), &[y, w, b], &weights).unwrap();
        }
        let squares = tape.apply(Op::Mul, &[y, y], &weights).unwrap();
        let loss = tape.apply(Op::Mean, &[squares], &weights).unwrap();
        let loss_sum = f64::from(tape.values(loss).unwrap()[0]);
        let mut grains = reducer.begin_step(0, 2);
        let grain = grains.next().unwrap();
        let accumulate = reducer.accumulate(grain);
        let mut sink = reducer.sink(grain);
        tape.backward(&[(loss, &[1.0])], &weights, accumulate, &mut sink).unwrap();
        reducer.finish_grain(grain, &GrainSums { loss_sum, weight: 1.0, metrics: vec![] });
        let outcome = reducer.finish_step(Votes::default()).unwrap();
        reducer.gradients().iter().map(|sum| sum / outcome.weight as f32).collect::<Vec<_>>()
    });
    for (ours, recorded) in all.iter().zip(&recorded) {
        for param in layout.params() {
            let theirs = recorded.values(&format!("unused.grad.{}", param.name));
            let greatest = theirs.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
            for (ours, theirs) in ours[param.range.clone()].iter().zip(theirs) {
                let off = (f64::from(*ours) - theirs).abs();
                assert!(off <= 2e-5 * greatest, "{}: {ours}, {theirs}", param.name);
            }
        }
    }
}
