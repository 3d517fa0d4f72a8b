//! A model: its names, shapes and layers. It owns no numbers.

use std::{ops::Range, sync::Arc};

use lockstep_api::ModelSpec;
use lockstep_tensor::{Layout, Meta, OpError, Real, Tape, Value, norm};

use crate::{
    arch::{Net, Ports},
    builder::{Builder, Declared, Running, VARIANCE},
    error::ModelError,
    flow::Flow,
    graph::Given,
    io::{InputSpec, KINDS, MASK, OutputSpec},
    memory::Memory,
    mode::Mode,
    names::Names,
    run::{OnTape, Workspace},
    shapes::{Shape, Shapes},
};

/// An architecture with its sizes.
#[derive(Debug, Clone)]
pub struct Model {
    net: Net,
    declared: Declared,
    ports: Ports,
    pub(crate) names: Names,
}

impl Model {
    /// Builds the layers.
    ///
    /// # Errors
    /// Sizes that are out of range or do not go together, named by the path of their field; more parameters than an
    /// arena may hold.
    pub fn new(spec: &ModelSpec) -> Result<Self, ModelError> {
        let mut builder = Builder::default();
        let (net, ports) = Net::new(&spec.arch, &mut builder)?;
        Ok(Self { net, declared: builder.finish()?, ports, names: Names::of(&spec.arch) })
    }

    /// Where each parameter lies: in reverse order of first use.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.declared.layout
    }

    /// Where each running statistic lies: `NAME.running_mean`, `NAME.running_var` and `NAME.num_batches_tracked` of each
    /// batch norm. The counter is one f32, exact up to 2²⁴ batches, where it stays; nothing is computed from it.
    pub fn buffers(&self) -> &Arc<Layout> {
        &self.declared.buffers
    }

    /// The tensors that it reads, the required ones first.
    pub fn inputs(&self) -> &[InputSpec] {
        &self.ports.inputs
    }

    /// The tensors that it puts out.
    pub fn outputs(&self) -> &[OutputSpec] {
        std::slice::from_ref(&self.ports.output)
    }

    /// Trainable numbers.
    pub fn parameter_count(&self) -> usize {
        self.declared.layout.len()
    }

    /// The weights that `seed` begins with, in arena order: a function of the seed, the parameter's name and the place in
    /// it alone, and so the same on every rank. Each architecture's file says by which rule.
    pub fn initial_weights(&self, seed: u64) -> Vec<f32> {
        let mut weights = vec![0.0; self.declared.layout.len()];
        for (param, init) in self.declared.layout.params().iter().zip(&self.declared.inits) {
            init.draw(seed, &param.name, &mut weights[param.range.clone()]);
        }
        weights
    }

    /// Running means 0, variances 1, nothing counted.
    pub fn initial_buffers(&self) -> Vec<f32> {
        let mut buffers = vec![0.0; self.declared.buffers.len()];
        for param in self.declared.buffers.params() {
            if param.name.rsplit('.').next() == Some(VARIANCE) {
                buffers[param.range.clone()].fill(1.0);
            }
        }
        buffers
    }

    /// Memory for [`Model::forward`].
    pub fn workspace<T: Real>(&self) -> Workspace<T> {
        Workspace::new(&self.declared.running)
    }

    /// From the inputs to `logits`.
    ///
    /// Inputs that the model does not read are passed over: they are the loss's. `buffers` are read in evaluation only.
    /// After a training pass `workspace` has the batch's statistics for [`Model::batch_statistics`].
    ///
    /// # Errors
    /// A missing input, or one of another kind or shape; a tape of another layout; whatever an operation refuses.
    pub fn forward<T: Real>(
        &self,
        tape: &mut Tape<T>,
        inputs: &[(&str, Value)],
        weights: &[T],
        buffers: &[T],
        mode: Mode,
        workspace: &mut Workspace<T>,
    ) -> Result<Value, OpError> {
        let find =
            |name: &str| inputs.iter().find(|(given, _)| *given == name).map(|given| given.1);
        let given = self.given(find, |value| tape.meta(value))?;
        let mut graph = OnTape {
            tape,
            layout: &self.declared.layout,
            weights,
            buffer_layout: &self.declared.buffers,
            buffers,
            workspace,
        };
        self.net.forward(&mut Flow::new(&mut graph, mode), given)
    }

    /// The statistics of the last training pass, laid out like the buffers `[buffers.len()]`: means, unbiased variances
    /// (of one element it is 0), and 1 in place of a counter. Zeros where there was no batch.
    pub fn batch_statistics<T: Real>(&self, workspace: &Workspace<T>, statistics: &mut [f64]) {
        statistics.fill(0.0);
        for (running, batch) in self.declared.running.iter().zip(&workspace.norms) {
            let [mean, variance, tracked] = self.places(running);
            if batch.last().is_none_or(|&count| count == T::ZERO) {
                continue;
            }
            statistics[tracked].fill(1.0);
            if let Ok(places) = statistics.get_disjoint_mut([mean, variance]) {
                norm::batch_statistics(batch, places);
            }
        }
    }

    /// Takes a batch's statistics, laid out like the buffers, into the running ones by PyTorch's rule: the new mean is
    /// (1 - momentum) · old + momentum · batch, the variance likewise, and the counter goes up by 1.
    pub fn update_buffers<T: Real>(&self, buffers: &mut [T], statistics: &[f64]) {
        for running in &self.declared.running {
            let [mean, variance, tracked] = self.places(running);
            if statistics[tracked.clone()].iter().all(|&batches| batches == 0.0) {
                continue;
            }
            for place in [mean, variance] {
                let batch = &statistics[place.clone()];
                norm::update_running(&mut buffers[place], batch, running.momentum);
            }
            for counter in &mut buffers[tracked] {
                *counter += T::ONE;
            }
        }
    }

    /// Where mean, variance and counter lie in the buffers.
    fn places(&self, running: &Running) -> [Range<usize>; 3] {
        let layout = &self.declared.buffers;
        [running.mean, running.variance, running.tracked]
            .map(|buffer| layout.params()[buffer.id(layout).0].range.clone())
    }

    /// Inputs of so many samples, as long as the job says or the model takes; the optional ones too.
    pub fn typical_inputs(&self, samples: usize) -> Vec<(&'static str, Meta)> {
        let inputs = self.ports.inputs.iter();
        inputs.map(|input| (input.name, input.typical(samples))).collect()
    }

    /// What training on grains of such inputs needs, with so many moments of each parameter.
    ///
    /// Activations are counted value by value over the operations of [`Model::forward`] and their backward. Beside them a
    /// tape's pool holds memory that nothing fits in at the moment, and convolutions rearrange their input: up to half as
    /// much again in small models (`tests/memory.rs`).
    ///
    /// # Errors
    /// Inputs that the model does not read, as in [`Model::forward`]; or a tensor would be too large.
    pub fn memory_estimate(
        &self,
        inputs: &[(&str, Meta)],
        moments: usize,
        mode: Mode,
    ) -> Result<Memory, OpError> {
        let mut shapes = Shapes::new(&self.declared.layout, &self.declared.buffers);
        let placed: Vec<(&str, &Meta, Shape)> =
            inputs.iter().map(|(name, meta)| (*name, meta, shapes.input(meta.clone()))).collect();
        let find = |name: &str| placed.iter().find(|(given, ..)| *given == name).map(|it| it.2);
        let meta_of = |shape: Shape| {
            let found = placed.iter().find(|it| it.2 == shape);
            found.map(|it| it.1).ok_or_else(|| OpError::MissingInput { name: String::new() })
        };
        let given = self.given(find, meta_of)?;
        let output = self.net.forward(&mut Flow::new(&mut shapes, mode), given)?;
        let activations = match mode {
            Mode::Train { .. } => shapes.peak_bytes(output),
            Mode::Eval => shapes.forward_bytes(),
        };
        let parameters = 4 * self.declared.layout.len() as u64;
        Ok(Memory {
            parameters,
            buffers: 4 * self.declared.buffers.len() as u64,
            gradients: parameters,
            moments: parameters.saturating_mul(moments as u64),
            activations,
        })
    }

    /// Finds the inputs and compares them with what the model reads.
    fn given<'m, V: Copy>(
        &self,
        find: impl Fn(&str) -> Option<V>,
        meta: impl Fn(V) -> Result<&'m Meta, OpError>,
    ) -> Result<Given<V>, OpError> {
        let required = &self.ports.inputs[0];
        let missing = || OpError::MissingInput { name: required.name.to_owned() };
        let x = find(required.name).ok_or_else(missing)?;
        let found = meta(x)?;
        let samples = found.shape.first().copied().unwrap_or(1);
        required.check(found, samples).map_err(|_| mismatch(required, found, samples))?;
        let optional = |name: &str| {
            let Some(input) = self.ports.inputs[1..].iter().find(|input| input.name == name) else {
                return Ok(None);
            };
            let Some(value) = find(name) else { return Ok(None) };
            let given = meta(value)?;
            // As long as the required one.
            if given.dtype.is_float() || given.shape != found.shape {
                let expected = Meta::new(input.dtype, found.shape.clone());
                let (name, given) = (name.to_owned(), given.clone());
                return Err(OpError::InputMeta { name, given, expected });
            }
            Ok(Some(value))
        };
        Ok(Given { x, attention_mask: optional(MASK)?, token_type_ids: optional(KINDS)? })
    }
}

fn mismatch(input: &InputSpec, found: &Meta, samples: usize) -> OpError {
    OpError::InputMeta {
        name: input.name.to_owned(),
        given: found.clone(),
        expected: input.typical(samples),
    }
}
