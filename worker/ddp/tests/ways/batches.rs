//! Batch norms over the grains of all ranks: the same as over one large batch.

use std::{sync::Arc, time::Duration};

use lockstep_ddp::{BatchPeers, GroupError, Reducer, ReducerConfig};
use lockstep_tensor::{Accumulate, BatchNorm, GradBuffer, Layout, Op, Peers, Tape, Threads, Value};
use proptest::prelude::*;

use crate::{
    ranks::{ARRANGEMENTS, config, drawn, layout, on_ranks},
    site::Site,
};

const CHANNELS: usize = 5;
const PIXELS: usize = 3;

fn joining() -> ReducerConfig {
    ReducerConfig { joins_batches: true, ..config() }
}

/// Two batch norms one after the other, the first with a ReLU behind it.
fn norms() -> Arc<Layout> {
    let names = ["1.weight", "1.bias", "2.weight", "2.bias"];
    Arc::new(Layout::new(names.map(|name| (name.to_owned(), vec![CHANNELS])).to_vec()).unwrap())
}

/// Forward and backward of some images; the outputs and all gradients.
fn run(images: &[usize], shape: &[usize], peers: Option<&Arc<BatchPeers>>) -> [Vec<f64>; 2] {
    let layout = norms();
    let each = shape.iter().product::<usize>();
    let weights: Vec<f64> = (0..layout.len()).map(|at| 0.5 + at as f64 / 7.0).collect();
    let numbers = |kind: u64| -> Vec<f64> {
        let image = |image: &usize| {
            let image = *image;
            (0..each).map(move |at| f64::from(drawn(kind, image, at)))
        };
        images.iter().flat_map(image).collect()
    };
    let mut tape = Tape::with_threads(Arc::clone(&layout), Threads::default());
    tape.set_peers(peers.map(|peers| Arc::clone(peers) as Arc<dyn Peers>));
    // Far from 0: a variance that was a difference of squares would be nothing but rounding.
    let x: Vec<f64> = numbers(1).iter().map(|x| 1e6 + x).collect();
    let mut y: Value = tape.input(&[&[images.len()], shape].concat(), &x).unwrap();
    for (layer, relu) in [("1", true), ("2", false)] {
        let [weight, bias] = ["weight", "bias"]
            .map(|kind| tape.param(layout.id(&format!("{layer}.{kind}")).unwrap()));
        let norm = Op::BatchNorm(BatchNorm { eps: 1e-5, relu });
        y = tape.apply(norm, &[y, weight, bias], &weights).unwrap();
    }
    let outputs = tape.values(y).unwrap().to_vec();
    let mut gradients = GradBuffer::new(layout);
    tape.backward(&[(y, &numbers(2))], &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    [outputs, gradients.values().to_vec()]
}

fn close(ours: &[f64], truth: &[f64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(ours.len(), truth.len());
    let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    for (ours, truth) in ours.iter().zip(truth) {
        prop_assert!((ours - truth).abs() <= 1e-8 * greatest, "{} {}", ours, truth);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// Images of each rank; none: it stands in.
    #[test]
    fn grains_of_all_ranks_are_one_batch(
        images in proptest::collection::vec(0..6_usize, 3), arrangement in 0..4_usize,
        is_flat: bool,
    ) {
        prop_assume!(images.iter().any(|images| 2 <= *images));
        // A grain alone must have two values of each channel.
        let images: Vec<usize> = images.iter().map(|it| if *it == 1 { 2 } else { *it }).collect();
        let shape: &[usize] = if is_flat { &[CHANNELS] } else { &[CHANNELS, PIXELS] };
        let whole: Vec<usize> = (0..images.iter().sum()).collect();
        let truth = run(&whole, shape, None);
        let parts = on_ranks(ARRANGEMENTS[arrangement], &joining(), |reducer: &mut Reducer| {
            let rank = reducer.rank();
            let first: usize = images[..rank].iter().sum();
            let own: Vec<usize> = (first..first + images[rank]).collect();
            let peers = reducer.batch_peers().unwrap();
            if own.is_empty() {
                assert!(!peers.knows_a_grain());
                peers.begin_rehearsal();
                // Another rank's images do as well.
                run(&[0, 1], shape, Some(peers));
                peers.end_rehearsal();
                peers.stand_in().unwrap();
                return [Vec::new(), vec![0.0; 4 * CHANNELS]];
            }
            peers.begin_grain();
            let result = run(&own, shape, Some(peers));
            peers.end_grain().unwrap();
            result
        });
        let outputs: Vec<f64> = parts.iter().flat_map(|[outputs, _]| outputs.clone()).collect();
        close(&outputs, &truth[0])?;
        let sum = |at: usize| parts.iter().map(|[_, gradients]| gradients[at]).sum();
        let gradients: Vec<f64> = (0..4 * CHANNELS).map(sum).collect();
        close(&gradients, &truth[1])?;
    }
}

#[test]
fn a_rank_that_gives_up_is_not_waited_for() {
    for nodes in ARRANGEMENTS {
        let site = &Site::new(nodes);
        let run = |rank| {
            let join = site.join(rank, Duration::from_secs(60));
            let reducer = Reducer::new(join, layout(), joining()).unwrap();
            let peers = Arc::clone(reducer.batch_peers().unwrap());
            if rank == 1 {
                drop(reducer);
                return;
            }
            let mut values = [1.0];
            peers.sum(&mut values);
            assert!(values[0].is_nan());
            let error = peers.check().unwrap_err();
            let is_told = matches!(
                error,
                GroupError::PeerGone { rank: 1, .. } | GroupError::Aborted { by: Some(1) }
            );
            assert!(is_told, "{nodes:?}: {error:?}");
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|rank| drop(scope.spawn(move || run(rank))));
        });
    }
}
