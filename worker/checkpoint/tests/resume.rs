//! A model that is trained on from a checkpoint gets the same weights, bit for bit, as one that was left alone.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;
use lockstep_api::Step;
use lockstep_checkpoint::{FORMAT_VERSION, Meta, State, StateMut, load, save};
use lockstep_tensor::{
    Accumulate, Activation, Clip, GradBuffer, Layout, Op, Optimizer, OptimizerState, StepFactors,
    Tape, UpdatePlan, init,
};
use serde_json::json;

struct Model {
    layout: Arc<Layout>,
    weights: Vec<f32>,
    plan: UpdatePlan,
    state: OptimizerState,
}

impl Model {
    fn new(optimizer: Optimizer) -> Self {
        let shapes = vec![("w".to_owned(), vec![4, 3]), ("b".to_owned(), vec![4])];
        let layout = Arc::new(Layout::new(shapes).unwrap());
        let mut weights = vec![0.0; layout.len()];
        init::kaiming_uniform(1, "all", 3, &mut weights);
        let plan = UpdatePlan::new(optimizer, Clip::None, &[], &layout).unwrap();
        let state = plan.state();
        Self { layout, weights, plan, state }
    }

    /// Brings the outputs towards zero, with inputs that depend on the step.
    fn train(&mut self, steps: std::ops::Range<u64>) {
        let mut tape = Tape::new(Arc::clone(&self.layout));
        let mut gradients = GradBuffer::new(Arc::clone(&self.layout));
        for step in steps {
            tape.clear();
            let mut data = vec![0.0; 6];
            init::uniform(step, "data", 1.0, &mut data);
            let x = tape.input(&[2, 3], &data).unwrap();
            let (w, b) = (self.layout.id("w").unwrap(), self.layout.id("b").unwrap());
            let (w, b) = (tape.param(w), tape.param(b));
            let y = tape.apply(Op::Linear(Activation::None), &[x, w, b], &self.weights).unwrap();
            let squares = tape.apply(Op::Mul, &[y, y], &self.weights).unwrap();
            let loss = tape.apply(Op::Sum, &[squares], &self.weights).unwrap();
            tape.backward(&[(loss, &[1.0])], &self.weights, Accumulate::Overwrite, &mut gradients)
                .unwrap();
            let factors = StepFactors { lr_factor: 1.0, grad_scale: 0.5 };
            let Self { plan, weights, state, .. } = self;
            plan.step(weights, gradients.values(), factors, state).unwrap();
        }
    }
}

#[test]
fn training_goes_on_from_a_checkpoint_with_the_same_bits() {
    let adamw = Optimizer::AdamW { lr: 0.05, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 };
    let sgd = Optimizer::Sgd {
        lr: 0.05,
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 0.01,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(folder.path()).unwrap().join("step-5.safetensors");
    for optimizer in [adamw, sgd] {
        let mut undisturbed = Model::new(optimizer);
        undisturbed.train(0..12);

        let mut first = Model::new(optimizer);
        first.train(0..5);
        let meta = Meta {
            version: FORMAT_VERSION,
            step: Step(5),
            data_epoch: 0,
            next_position: 10,
            samples_per_epoch: 24,
            optimizer_step: first.state.step,
            loss_scale: None,
            settings: json!({}),
            digests: BTreeMap::new(),
        };
        let (layout, weights, optimizer_state) = (&first.layout, &first.weights, &first.state);
        let buffer_layout = &Layout::new(vec![]).unwrap();
        let state = State {
            layout,
            weights,
            buffer_layout,
            buffers: &[],
            average: None,
            hook: None,
            optimizer: optimizer_state,
        };
        save(&path, &state, &meta).unwrap();

        let mut second = Model::new(optimizer);
        let Model { layout, weights, state, .. } = &mut second;
        let mut state = StateMut {
            layout,
            weights,
            buffer_layout,
            buffers: &mut [],
            average: None,
            hook: None,
            optimizer: state,
        };
        load(&path, &json!({}), &mut state).unwrap();
        second.train(5..12);
        assert_eq!(second.weights, undisturbed.weights);
        assert_eq!(second.state, undisturbed.state);
    }
}
