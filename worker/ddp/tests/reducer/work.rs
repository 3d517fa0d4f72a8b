//! A small training run on made-up data, and the same without any reducer.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_ddp::{
    GrainSums, GroupError, Intent, Join, Reducer, ReducerConfig, Reduction, StepOutcome, Votes,
};
use lockstep_shm::FlightRecord;
use lockstep_tensor::{Accumulate, Activation, GradBuffer, GradSink, Layout, Op, Real, Tape};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

pub(crate) const MICRO_BATCH: usize = 3;
const FEATURES: usize = 8;
const CLASSES: usize = 4;
const LEARNING_RATE: f64 = 0.3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    None,
    /// Says nothing more, until its standard input closes.
    HangBefore {
        step: u64,
    },
    /// Kills itself in the middle of the step.
    KilledIn {
        step: u64,
    },
    /// Its gradients are not numbers; its loss is.
    SpoiledIn {
        step: u64,
    },
    /// Votes to stop.
    StopsIn {
        step: u64,
    },
    /// Another model than everybody else's.
    OtherModel,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) group_fd: i32,
    /// Samples of each step.
    pub(crate) batches: Vec<usize>,
    pub(crate) fixed_tree: bool,
    pub(crate) timeout: Duration,
    pub(crate) record: PathBuf,
    pub(crate) report: PathBuf,
    pub(crate) fault: Fault,
}

/// What a rank saw.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Sum of loss, of weight, of correct answers, of answers, each step.
    pub(crate) sums: Vec<[f64; 4]>,
    /// Bits of the weights after each step.
    pub(crate) weights: Vec<Vec<u32>>,
    /// Steps that were not finite, and on which ranks.
    pub(crate) non_finite: Vec<(u64, Vec<usize>)>,
    pub(crate) stopped_in: Option<u64>,
    pub(crate) failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) missing: Vec<usize>,
    pub(crate) parameter: Option<String>,
    pub(crate) after: Duration,
}

/// One rank's whole run.
pub(crate) fn train(fd: impl AsFd, task: &Task) -> Report {
    let mut report = Report::default();
    let mut started = Instant::now();
    if let Err(error) = try_train(fd, task, &mut report, &mut started) {
        let (missing, parameter) = match &error {
            GroupError::NotEntered { missing, .. }
            | GroupError::FormationTimeout { missing, .. } => (missing.clone(), None),
            GroupError::PlanMismatch { parameter, .. } => (Vec::new(), Some(parameter.clone())),
            _ => (Vec::new(), None),
        };
        let (text, after) = (error.to_string(), started.elapsed());
        report.failure = Some(Failure { text, missing, parameter, after });
    }
    report
}

fn try_train(
    fd: impl AsFd,
    task: &Task,
    report: &mut Report,
    started: &mut Instant,
) -> Result<(), GroupError> {
    let layout = layout(if task.fault == Fault::OtherModel { 24 } else { 16 });
    let record = Arc::new(FlightRecord::create(&task.record, task.rank as u32).unwrap());
    let config = ReducerConfig {
        bucket_bytes: 500,
        first_bucket_bytes: 100,
        reduction: if task.fixed_tree { Reduction::FixedTree } else { Reduction::Fast },
        max_grains: 12,
        metric_count: 1,
        ..ReducerConfig::default()
    };
    let join = Join::one_node(fd.as_fd(), task.rank, task.world, task.timeout);
    let join = Join { record: Some(record), ..join };
    let mut reducer = Reducer::new(join, Arc::clone(&layout), config)?;
    assert!(3 <= reducer.plan().buckets.len());
    let mut weights: Vec<f32> = initial_weights(&layout);
    let mut tape = Tape::new(layout);
    for (step, samples) in (0..).zip(task.batches.iter().copied()) {
        if task.fault == (Fault::HangBefore { step }) {
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
            return Ok(());
        }
        for grain in reducer.begin_step(step, samples.div_ceil(MICRO_BATCH)) {
            let positions = grain * MICRO_BATCH..((grain + 1) * MICRO_BATCH).min(samples);
            let seed = if task.fault == (Fault::SpoiledIn { step }) { f32::NAN } else { 1.0 };
            let accumulate = reducer.accumulate(grain);
            let sums = grain_backward(
                &mut tape,
                &weights,
                positions,
                seed,
                accumulate,
                &mut reducer.sink(grain),
            );
            if task.fault == (Fault::KilledIn { step }) {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
            reducer.finish_grain(grain, &sums);
        }
        let stops = task.fault == (Fault::StopsIn { step });
        let intent = if stops { Intent::Stop } else { Intent::GoOn };
        let votes = Votes { intent, ..Votes::default() };
        *started = Instant::now();
        let outcome = reducer.finish_step(votes)?;
        let StepOutcome { loss_sum, weight, metrics, stop, non_finite, non_finite_ranks, .. } =
            outcome;
        report.sums.push([loss_sum, weight, metrics[0].0, metrics[0].1]);
        if non_finite {
            report.non_finite.push((step, non_finite_ranks));
        } else {
            descend(&mut weights, reducer.gradients(), weight as f32);
        }
        report.weights.push(weights.iter().map(|weight| weight.to_bits()).collect());
        if stop {
            report.stopped_in = Some(step);
            break;
        }
    }
    reducer.close();
    Ok(())
}

/// The same run in f64, whole batches at once: what all others are measured against. The weights
/// after each step, and the sums.
pub(crate) fn reference(batches: &[usize]) -> (Vec<Vec<f64>>, Vec<[f64; 4]>) {
    let layout = layout(16);
    let mut weights: Vec<f64> = initial_weights(&layout);
    let mut tape = Tape::new(Arc::clone(&layout));
    let (mut all_weights, mut all_sums) = (Vec::new(), Vec::new());
    for samples in batches.iter().copied() {
        let mut buffer = GradBuffer::new(Arc::clone(&layout));
        let sums = grain_backward(
            &mut tape,
            &weights,
            0..samples,
            1.0,
            Accumulate::Overwrite,
            &mut buffer,
        );
        descend(&mut weights, buffer.values(), sums.weight);
        all_weights.push(weights.clone());
        let (correct, answers) = sums.metrics[0];
        all_sums.push([sums.loss_sum, sums.weight, correct, answers]);
    }
    (all_weights, all_sums)
}

fn descend<T: Real>(weights: &mut [T], gradients: &[T], weight: T) {
    let rate = T::from_f64(LEARNING_RATE) / weight;
    for (weight, gradient) in weights.iter_mut().zip(gradients) {
        *weight = *weight - rate * *gradient;
    }
}

pub(crate) fn layout(hidden: usize) -> Arc<Layout> {
    let named = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
    let used = vec![
        named("hidden.weight", &[hidden, FEATURES]),
        named("hidden.bias", &[hidden]),
        named("out.weight", &[CLASSES, hidden]),
        named("out.bias", &[CLASSES]),
    ];
    Arc::new(Layout::new(used).unwrap())
}

fn initial_weights<T: Real>(layout: &Layout) -> Vec<T> {
    (0..layout.len()).map(|index| T::from_f64(noise(index, 1) * 0.5)).collect()
}

/// Made-up numbers in -1..1 that f32 holds exactly.
fn noise(index: usize, salt: u64) -> f64 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ (salt << 32)) >> 44;
    mixed as f64 / f64::from(1 << 19) - 1.0
}

/// Forward and backward over some samples: the weighted negative log-likelihood, summed.
fn grain_backward<T: Real>(
    tape: &mut Tape<T>,
    weights: &[T],
    samples: std::ops::Range<usize>,
    seed: T,
    accumulate: Accumulate,
    sink: &mut dyn GradSink<T>,
) -> GrainSums {
    tape.clear();
    let count = samples.len();
    let features: Vec<T> = samples
        .clone()
        .flat_map(|sample| (0..FEATURES).map(move |f| T::from_f64(noise(sample * FEATURES + f, 2))))
        .collect();
    let labels: Vec<i64> = samples.clone().map(|sample| (sample * 7 % CLASSES) as i64).collect();
    let sample_weights: Vec<f64> = samples.map(|sample| 1.0 + (sample % 3) as f64).collect();
    let cast: Vec<T> = sample_weights.iter().copied().map(T::from_f64).collect();

    let x = tape.input(&[count, FEATURES], &features).unwrap();
    let y = tape.index(&[count], &labels).unwrap();
    let importance = tape.input(&[count], &cast).unwrap();
    let layout = Arc::clone(tape.layout());
    let [w1, b1, w2, b2] = ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]
        .map(|name| tape.param(layout.id(name).unwrap()));
    let mut apply = |op, inputs: &[_]| tape.apply(op, inputs, weights).unwrap();
    let hidden = apply(Op::Linear(Activation::None), &[x, w1, b1]);
    let hidden = apply(Op::Relu, &[hidden]);
    let scores = apply(Op::Linear(Activation::None), &[hidden, w2, b2]);
    let logs = apply(Op::LogSoftmax, &[scores]);
    let picked = apply(Op::Gather, &[logs, y]);
    let weighted = apply(Op::Mul, &[picked, importance]);
    let negative = apply(Op::Neg, &[weighted]);
    let loss = apply(Op::Sum, &[negative]);
    let answers = apply(Op::ArgMax, &[scores]);
    let correct = tape
        .indices(answers)
        .unwrap()
        .iter()
        .zip(&labels)
        .filter(|(got, label)| got == label)
        .count();
    let loss_sum = tape.values(loss).unwrap()[0].to_f64();
    tape.backward(&[(loss, &[seed])], weights, accumulate, sink).unwrap();
    GrainSums {
        loss_sum,
        weight: sample_weights.iter().sum(),
        metrics: vec![(correct as f64, count as f64)],
    }
}
