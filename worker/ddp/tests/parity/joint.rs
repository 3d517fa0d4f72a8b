//! A batch norm over the samples of both ranks.

use std::sync::Arc;

use lockstep_ddp::{ReducerConfig, Votes};
use lockstep_tensor::{Accumulate, BatchNorm, GradBuffer, Layout, Op, Peers, Tape, norm};

use crate::{
    recorded::ranks,
    recording::Recording,
    threads::{WORLD, on_ranks_with},
};

fn floats(recorded: &Recording, name: &str) -> Vec<f32> {
    recorded.values(name).iter().map(|x| *x as f32).collect()
}

fn close(name: &str, ours: impl IntoIterator<Item = f64>, truth: &[f64]) {
    let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    let ours: Vec<f64> = ours.into_iter().collect();
    assert_eq!(ours.len(), truth.len(), "{name}");
    for (ours, truth) in ours.iter().zip(truth) {
        assert!((ours - truth).abs() <= 2e-5 * greatest, "{name}: {ours}, {truth}");
    }
}

/// The gradients of weight and bias, this rank's part.
fn check(case: &str, recorded: &Recording, peers: Arc<dyn Peers>) -> Vec<f64> {
    let key = |name: &str| format!("syncbn.{case}.{name}");
    let names = ["input", "weight", "bias"];
    let shape = |name: &str| recorded.shape(&key(name)).to_vec();
    let params = names.map(|name| (name.to_owned(), shape(name)));
    let layout = Arc::new(Layout::new(params.to_vec()).unwrap());
    let mut weights = vec![0.0; layout.len()];
    for param in layout.params() {
        weights[param.range.clone()].copy_from_slice(&floats(recorded, &key(&param.name)));
    }
    let mut tape = Tape::new(Arc::clone(&layout));
    tape.set_peers(Some(peers));
    let ids = names.map(|name| layout.id(name).unwrap());
    let values = ids.map(|id| tape.param(id));
    let norm = BatchNorm { eps: 1e-5, relu: false };
    let y = tape.apply(Op::BatchNorm(norm), &values, &weights).unwrap();
    let wide = |values: &[f32]| values.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    close(&key("output"), wide(tape.values(y).unwrap()), recorded.values(&key("output")));

    let channels = shape("weight")[0];
    let (mut mean, mut variance) = (vec![0.0_f32; channels], vec![1.0_f32; channels]);
    let mut batch = [vec![0.0; channels], vec![0.0; channels]];
    norm::batch_statistics(tape.saved(y).unwrap(), batch.each_mut().map(Vec::as_mut_slice));
    for (running, batch) in [&mut mean, &mut variance].into_iter().zip(&batch) {
        norm::update_running(running, batch, 0.1);
    }
    close(&key("running_mean"), wide(&mean), recorded.values(&key("running_mean")));
    close(&key("running_var"), wide(&variance), recorded.values(&key("running_var")));

    let mut gradients = GradBuffer::new(Arc::clone(&layout));
    let seed = floats(recorded, &key("grad_output"));
    tape.backward(&[(y, &seed)], &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    let recorded_names = ["grad_input", "local_grad_weight", "local_grad_bias"];
    for (id, name) in ids.into_iter().zip(recorded_names) {
        close(&key(name), wide(gradients.of(id).unwrap()), recorded.values(&key(name)));
    }
    ids[1..].iter().flat_map(|id| wide(gradients.of(*id).unwrap())).collect()
}

#[test]
fn a_batch_norm_over_all_ranks_samples_agrees() {
    let recorded = ranks();
    let layout = Arc::new(Layout::new(vec![("any".to_owned(), vec![1])]).unwrap());
    let config = ReducerConfig { joins_batches: true, ..ReducerConfig::default() };
    for case in ["equal", "unequal"] {
        let parts = on_ranks_with(&layout, &config, |rank, reducer| {
            let peers = Arc::clone(reducer.batch_peers().unwrap());
            let part = check(case, &recorded[rank], Arc::clone(&peers) as Arc<dyn Peers>);
            peers.check().unwrap();
            // The reducer's own group is not disturbed.
            reducer.begin_step(0, WORLD).for_each(|grain| {
                let mut sink = reducer.sink(grain);
                lockstep_tensor::GradSink::grad(&mut sink, layout.id("any").unwrap()).fill(1.0);
                lockstep_tensor::GradSink::ready(&mut sink, layout.id("any").unwrap());
                let sums = lockstep_ddp::GrainSums { weight: 1.0, ..Default::default() };
                reducer.finish_grain(grain, &sums);
            });
            reducer.finish_step(Votes::default()).unwrap();
            assert_eq!(reducer.gradients(), [WORLD as f32]);
            part
        });
        let sum = parts[0].iter().zip(&parts[1]).map(|(left, right)| left + right);
        let names = ["sum_grad_weight", "sum_grad_bias"];
        let truth = names.map(|name| recorded[0].values(&format!("syncbn.{case}.{name}")));
        close(case, sum, &truth.concat());
    }
}
