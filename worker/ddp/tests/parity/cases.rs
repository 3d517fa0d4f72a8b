//! The recorded runs.

use std::{marker::PhantomData, sync::Arc};

use lockstep_ddp::Reduction;
use lockstep_tensor::{Layout, Optimizer};

use crate::{
    course::{Course, Seen},
    golden_training::{
        nets::{Cnn, Gpt, Mlp, Net},
        run::Run,
        tolerance::Golden,
    },
    recorded::{Scale, check_tensor, ranks, settings, with_batches},
    recording::Recording,
    threads::WORLD,
};

const MOMENTUM: Optimizer =
    Optimizer::Sgd { lr: 0.1, momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
const ADAM: Optimizer =
    Optimizer::Adam { lr: 0.01, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, amsgrad: false };

const THREE_STEPS: Course = Course {
    batches: [3; WORLD],
    micro: 1,
    idle_weight: f64::NAN,
    optimizer: MOMENTUM,
    reduction: Reduction::Fast,
};

/// A course, done in f32 on ranks and in f64 without them, beside its recording.
struct Done<N> {
    net: PhantomData<N>,
    /// See [`Scale`].
    reach: f64,
    recorded: [Recording; WORLD],
    layout: Arc<Layout>,
    truth: Vec<Seen<f64>>,
    ours: Vec<Seen<f32>>,
}

impl<N: Net> Done<N> {
    fn new(course: &Course, prefix: &str) -> Self {
        let recorded = ranks();
        let goldens = recorded.each_ref().map(|rank| with_batches::<N>(rank, prefix));
        let layout = layout::<N>(&goldens[0]);
        let (truth, ours) = (course.in_f64::<N>(&goldens), course.on_ranks::<N>(&goldens));
        assert_eq!(bits(&ours[0].weights), bits(&ours[1].weights), "ranks have other weights");
        // Adam moves a weight by its rate, whatever the gradient; two of them may go opposite ways.
        let reach = match course.optimizer {
            Optimizer::Adam { lr, .. } => 2.0 * lr * course.steps() as f64,
            _ => 0.0,
        };
        Self { net: PhantomData, reach, recorded, layout, truth, ours }
    }

    /// All parameters' values under `prefix`, one arena of each rank.
    fn check(
        &self,
        rank: usize,
        prefix: &str,
        truth: impl Fn(&Seen<f64>) -> &[f64],
        ours: impl Fn(&Seen<f32>) -> &[f32],
    ) {
        let (truth, ours) = (truth(&self.truth[rank]), ours(&self.ours[rank]));
        let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
        let scale = Scale { greatest, reach: self.reach };
        for param in self.layout.params() {
            let (truth, ours) = (&truth[param.range.clone()], &ours[param.range.clone()]);
            let recorded = self.recorded[rank].values(&format!("{prefix}.{}", param.name));
            check_tensor::<N>(prefix, &param.name, [truth, recorded], ours, &scale);
        }
    }

    fn check_weights(&self, prefix: &str) {
        for rank in 0..WORLD {
            self.check(rank, prefix, |seen| &seen.weights, |seen| &seen.weights);
        }
    }

    /// Running statistics, which differ between ranks after the last forward.
    fn check_statistics(&self, prefix: &str) {
        let scale = Scale { greatest: 1.0, reach: self.reach };
        for ((recorded, truth), ours) in self.recorded.iter().zip(&self.truth).zip(&self.ours) {
            for ((name, truth), (_, ours)) in truth.statistics.iter().zip(&ours.statistics) {
                let full_name = format!("{prefix}.{name}");
                if let Some((_, counts)) = recorded.ints.get(&full_name) {
                    let counts: Vec<_> = counts.iter().map(|count| *count as f32).collect();
                    assert_eq!(*ours, counts, "{full_name}");
                } else {
                    let recorded = recorded.values(&full_name);
                    check_tensor::<N>(prefix, name, [truth, recorded], ours, &scale);
                }
            }
        }
    }
}

fn layout<N: Net>(golden: &Golden) -> Arc<Layout> {
    Arc::clone(&Run::<N, f64>::new(golden).graph.layout)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn even_batches_agree<N: Net>(model: &str) {
    let done = Done::<N>::new(&THREE_STEPS, &format!("even.{model}."));
    for rank in 0..WORLD {
        let prefix = format!("even.{model}.avg_grad");
        done.check(rank, &prefix, |seen| &seen.grads[0], |seen| &seen.grads[0]);
        let losses = &settings()[format!("even.{model}.loss")][rank];
        for (step, ours) in done.ours[rank].losses.iter().enumerate() {
            let recorded = losses[step].as_f64().unwrap();
            assert!((ours - recorded).abs() <= 2e-5 * recorded, "step {step}: {ours}, {recorded}");
        }
    }
    done.check_weights(&format!("even.{model}.after3"));
    done.check_statistics(&format!("even.{model}.after3"));
}

#[test]
fn a_perceptrons_gradients_and_weights_agree() {
    even_batches_agree::<Mlp>("mlp");
}

#[test]
fn a_convolutional_nets_gradients_weights_and_statistics_agree() {
    even_batches_agree::<Cnn>("cnn");
}

#[test]
fn a_transformers_gradients_and_weights_agree() {
    even_batches_agree::<Gpt>("gpt");
}

/// Rank 0 runs out of data two steps before rank 1.
fn join_agrees(case: &str, idle_weight: f64) {
    let course = Course { batches: [3, 5], idle_weight, ..THREE_STEPS };
    let done = Done::<Mlp>::new(&course, &format!("join.{case}."));
    for (rank, batches) in course.batches.into_iter().enumerate() {
        for step in 0..batches {
            let prefix = format!("join.{case}.step{step}.grad");
            done.check(rank, &prefix, |seen| &seen.grads[step], |seen| &seen.grads[step]);
        }
    }
    done.check_weights(&format!("join.{case}.final"));
}

#[test]
fn a_rank_without_data_that_still_counts_gives_the_mean_over_all_ranks() {
    join_agrees("divide_by_initial_true", 1.0);
}

#[test]
fn a_rank_without_data_that_does_not_count_gives_the_mean_over_the_others() {
    join_agrees("divide_by_initial_false", 0.0);
}

#[test]
fn two_batches_without_communication_between_them_agree() {
    for reduction in [Reduction::Fast, Reduction::FixedTree] {
        let course = Course { batches: [2; WORLD], micro: 2, reduction, ..THREE_STEPS };
        let done = Done::<Mlp>::new(&course, "accum.");
        for rank in 0..WORLD {
            let prefix = "accum.after_sync.grad";
            done.check(rank, prefix, |seen| &seen.grads[0], |seen| &seen.grads[0]);
        }
    }
}

/// PyTorch divides Adam's state over the ranks; weights are what must be the same.
fn adam_agrees<N: Net>(model: &str) {
    let course = Course { optimizer: ADAM, ..THREE_STEPS };
    let done = Done::<N>::new(&course, &format!("even.{model}."));
    done.check_weights(&format!("zero.{model}.after3"));
    done.check_statistics(&format!("zero.{model}.after3"));
}

#[test]
fn a_perceptrons_weights_agree_with_adam() {
    adam_agrees::<Mlp>("mlp");
}

#[test]
fn a_convolutional_nets_weights_agree_with_adam() {
    adam_agrees::<Cnn>("cnn");
}

#[test]
fn a_transformers_weights_agree_with_adam() {
    adam_agrees::<Gpt>("gpt");
}
