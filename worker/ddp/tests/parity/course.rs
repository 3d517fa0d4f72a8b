//! A training run on two ranks: with the reducer in f32, and on one thread in f64.

use std::sync::Arc;

use lockstep_ddp::{GrainSums, Reducer, Reduction, Votes};
use lockstep_tensor::{
    Accumulate, Clip, GradSink, Layout, Optimizer, OptimizerState, Real, StepFactors, UpdatePlan,
    Value,
};

use crate::{
    golden_training::{
        nets::Net,
        run::{Graph, Run},
        tolerance::Golden,
    },
    threads::{WORLD, on_ranks},
};

/// How ranks train.
pub(crate) struct Course {
    /// Batches of each rank.
    pub(crate) batches: [usize; WORLD],
    /// Batches of a step; then the weight of each is so much less.
    pub(crate) micro: usize,
    /// What a rank without a batch says its weight is.
    pub(crate) idle_weight: f64,
    pub(crate) optimizer: Optimizer,
    pub(crate) reduction: Reduction,
}

/// What a rank saw.
#[derive(Default)]
pub(crate) struct Seen<T> {
    /// The rank's own loss of each batch.
    pub(crate) losses: Vec<f64>,
    /// The gradient of each step, divided by the sum of the weights.
    pub(crate) grads: Vec<Vec<T>>,
    pub(crate) weights: Vec<T>,
    /// Running statistics: (name, values), by name.
    pub(crate) statistics: Vec<(String, Vec<T>)>,
}

impl Course {
    pub(crate) fn steps(&self) -> usize {
        self.batches.iter().max().unwrap() / self.micro
    }

    /// (sum, weight) of a rank's batch is (mean, 1); without one it is (0, `idle_weight`).
    fn weight(&self, has_batch: bool) -> f64 {
        (if has_batch { 1.0 } else { self.idle_weight }) / self.micro as f64
    }

    fn plan(&self, layout: &Layout) -> UpdatePlan {
        UpdatePlan::new(self.optimizer, Clip::None, &[], layout).unwrap()
    }

    /// What each rank's thread sees.
    pub(crate) fn on_ranks<N: Net>(&self, goldens: &[Golden; WORLD]) -> Vec<Seen<f32>> {
        let layout = Arc::clone(&Run::<N, f32>::new(&goldens[0]).graph.layout);
        on_ranks(&layout, self.reduction, |rank, reducer| {
            self.train(rank, reducer, Run::<N, f32>::new(&goldens[rank]))
        })
    }

    fn train<N: Net>(
        &self,
        rank: usize,
        reducer: &mut Reducer,
        mut run: Run<'_, N, f32>,
    ) -> Seen<f32> {
        assert!(1 < reducer.plan().buckets.len());
        let mut seen = Seen::default();
        let mut updates = Updates::new(self.plan(run.layout()));
        for step in 0..self.steps() {
            let mut statistics = statistics(&run.graph);
            reducer.broadcast(0, &mut statistics).unwrap();
            set_statistics(&mut run.graph, &statistics);
            let grains = reducer.begin_step(step as u64, WORLD * self.micro);
            let first = grains.start;
            for grain in grains {
                let batch = step * self.micro + grain - first;
                let has_batch = batch < self.batches[rank];
                let accumulate = reducer.accumulate(grain);
                let mut sink = reducer.sink(grain);
                let loss_sum = if has_batch {
                    let loss = backward(&mut run, batch, accumulate, &mut sink);
                    seen.losses.push(loss);
                    loss
                } else {
                    nothing(run.layout(), &mut sink);
                    0.0
                };
                let (weight, metrics) = (self.weight(has_batch), Vec::new());
                reducer.finish_grain(grain, &GrainSums { loss_sum, weight, metrics });
            }
            let outcome = reducer.finish_step(Votes::default()).unwrap();
            assert!(!outcome.non_finite);
            updates.apply(&mut run.graph.weights, reducer.gradients(), outcome.weight);
            let mean = reducer.gradients().iter().map(|sum| sum / outcome.weight as f32);
            seen.grads.push(mean.collect());
        }
        seen.finish(run)
    }

    /// The same in f64, what each rank sees.
    pub(crate) fn in_f64<N: Net>(&self, goldens: &[Golden; WORLD]) -> Vec<Seen<f64>> {
        let mut runs: Vec<_> = goldens.iter().map(Run::<N, f64>::new).collect();
        let mut all: Vec<Seen<f64>> = runs.iter().map(|_| Seen::default()).collect();
        let mut updates = Updates::new(self.plan(runs[0].layout()));
        for step in 0..self.steps() {
            let statistics = statistics(&runs[0].graph);
            let mut sum = vec![0.0; runs[0].layout().len()];
            let mut weight = 0.0;
            for (rank, run) in runs.iter_mut().enumerate() {
                set_statistics(&mut run.graph, &statistics);
                for batch in step * self.micro..(step + 1) * self.micro {
                    let has_batch = batch < self.batches[rank];
                    weight += self.weight(has_batch);
                    if has_batch {
                        let mut gradients = run.gradients.clone();
                        let loss = backward(run, batch, Accumulate::Overwrite, &mut gradients);
                        all[rank].losses.push(loss);
                        sum.iter_mut().zip(gradients.values()).for_each(|(sum, x)| *sum += x);
                    }
                }
            }
            updates.apply(&mut runs[0].graph.weights, &sum, weight);
            let weights = runs[0].graph.weights.clone();
            for (run, seen) in runs.iter_mut().zip(&mut all) {
                run.graph.weights.clone_from(&weights);
                seen.grads.push(sum.iter().map(|sum| sum / weight).collect());
            }
        }
        all.into_iter().zip(runs).map(|(seen, run)| seen.finish(run)).collect()
    }
}

impl<T: Real> Seen<T> {
    fn finish<N: Net>(mut self, run: Run<'_, N, T>) -> Self {
        let values = |name: String| (name.clone(), run.graph.buffers[&name].clone());
        self.statistics = sorted(&run.graph).into_iter().map(values).collect();
        self.weights = run.graph.weights;
        self
    }
}

/// All running statistics, in the order of their names.
fn statistics<T: Real>(graph: &Graph<T>) -> Vec<T> {
    sorted(graph).into_iter().flat_map(|name| graph.buffers[&name].clone()).collect()
}

fn set_statistics<T: Real>(graph: &mut Graph<T>, mut values: &[T]) {
    for name in sorted(graph) {
        let into = graph.buffers.get_mut(&name).unwrap();
        let (from, rest) = values.split_at(into.len());
        into.copy_from_slice(from);
        values = rest;
    }
}

fn sorted<T: Real>(graph: &Graph<T>) -> Vec<String> {
    let mut names: Vec<_> = graph.buffers.keys().cloned().collect();
    names.sort();
    names
}

/// Writes the gradient of a batch's mean loss, and returns that.
fn backward<N: Net, T: Real>(
    run: &mut Run<'_, N, T>,
    batch: usize,
    accumulate: Accumulate,
    sink: &mut dyn GradSink<T>,
) -> f64 {
    let (x, loss) = run.forward_and_loss(batch, 0..run.golden.batch());
    let graph = &mut run.graph;
    let count = graph.tape.meta(x).unwrap().shape[0] as f64;
    let share = [T::from_f64(1.0 / count)];
    let seeds: [(Value, &[T]); 1] = [(loss, &share)];
    graph.tape.backward(&seeds, &graph.weights, accumulate, sink).unwrap();
    graph.values(loss)[0] / count
}

/// The gradient of a rank without data.
fn nothing(layout: &Layout, sink: &mut dyn GradSink<f32>) {
    for id in layout.ids() {
        sink.grad(id).fill(0.0);
        sink.ready(id);
    }
}

/// An optimizer and its state.
struct Updates<T> {
    plan: UpdatePlan,
    state: OptimizerState<T>,
}

impl<T: Real> Updates<T> {
    fn new(plan: UpdatePlan) -> Self {
        Self { state: plan.state(), plan }
    }

    fn apply(&mut self, weights: &mut [T], sum: &[T], weight: f64) {
        let factors = StepFactors { lr_factor: 1.0, grad_scale: 1.0 / weight };
        self.plan.step(weights, sum, factors, &mut self.state).unwrap();
    }
}
