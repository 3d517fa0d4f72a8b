//! One grain through model and loss: what training, evaluation and the check at submit have in common.

use std::sync::Arc;

use lockstep_api::FailureCode;
use lockstep_models::{InputMismatch, Mode, Model, Workspace};
use lockstep_sandbox::{Batch, BatchData, BatchTensor};
use lockstep_tensor::{Accumulate, GradSink, Meta, OpError, Peers, Tape, Threads, Value};
use serde_json::json;

use crate::failure::{Failure, GuestCall};
use crate::loss::{Loss, LossError, LossValue, Seed};

/// Model, loss, weights, and the tape they run on.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Names and shapes.
    pub(crate) model: Model,
    /// The loss guest.
    pub(crate) loss: Loss,
    /// In arena order.
    pub(crate) weights: Vec<f32>,
    /// Running statistics, likewise.
    pub(crate) buffers: Vec<f32>,
    tape: Tape<f32>,
    workspace: Workspace<f32>,
    /// Of the last forward.
    output: Option<Value>,
}

/// Why a grain has no loss.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrainError {
    /// The loader has not put a tensor that the model reads.
    #[error("the loader puts no tensor `{name}`, only {found:?}")]
    NoInput {
        /// Which the model reads.
        name: &'static str,
        /// What it puts.
        found: Vec<String>,
    },
    /// A tensor has another dtype or shape.
    #[error("of what the loader puts, {0}")]
    Input(InputMismatch),
    /// A label is outside of the model's classes.
    #[error("sample {sample} has label {label}, but the model has {classes} classes (labels 0 to {})", classes - 1)]
    Label {
        /// The sample.
        sample: u64,
        /// Its label.
        label: i64,
        /// As the model has it.
        classes: usize,
    },
    /// A token is outside of the model's vocabulary.
    #[error("sample {sample} has {token} in `{input}`, where the model takes 0 to {}", vocabulary - 1)]
    Token {
        /// The sample.
        sample: u64,
        /// The tensor it stands in.
        input: String,
        /// It.
        token: i64,
        /// As the model has it.
        vocabulary: usize,
    },
    /// The model's own operations failed.
    #[error("the model's forward pass failed")]
    Model(#[source] OpError),
    /// The loss failed.
    #[error(transparent)]
    Loss(LossError),
}

impl Engine {
    /// A fresh tape over `weights`.
    pub(crate) fn new(
        model: Model,
        loss: Loss,
        (weights, buffers): (Vec<f32>, Vec<f32>),
        threads: Threads,
    ) -> Self {
        let tape = Tape::with_threads(Arc::clone(model.layout()), threads);
        let workspace = model.workspace();
        Self { model, loss, weights, buffers, tape, workspace, output: None }
    }

    /// Batch norms take their statistics over the grains of all of them.
    pub(crate) fn set_peers(&mut self, peers: Option<Arc<dyn Peers>>) {
        self.tape.set_peers(peers);
    }

    /// Model, then loss. `samples`: which samples the batch is of, for messages.
    ///
    /// # Errors
    /// See [`GrainError`]. Numbers that are not finite are no error here.
    pub(crate) fn forward(
        &mut self,
        batch: &Batch,
        samples: &[u64],
        mode: Mode,
    ) -> Result<LossValue, GrainError> {
        self.tape.clear();
        self.check_inputs(batch, samples.len())?;
        let place = |tensor: &BatchTensor| match &tensor.data {
            BatchData::F32(data) => self.tape.input(&tensor.shape, data),
            BatchData::I64(data) => self.tape.index(&tensor.shape, data),
        };
        let inputs = batch.tensors.iter().map(place).collect::<Result<Vec<Value>, _>>();
        let inputs = inputs.map_err(GrainError::Model)?;
        let names = batch.tensors.iter().map(|tensor| tensor.name.as_str());
        let named: Vec<(&str, Value)> = names.zip(inputs.iter().copied()).collect();
        let Self { tape, weights, buffers, workspace, .. } = self;
        let output = self.model.forward(tape, &named, weights, buffers, mode, workspace);
        let output = output.map_err(|error| name_token(error, batch, samples))?;
        self.output = Some(output);
        let value = self.loss.compute(&mut self.tape, output, batch, &inputs, &self.weights);
        value.map_err(|error| self.name_label(error, samples))
    }

    /// The last training grain's statistics, laid out like the running ones.
    pub(crate) fn batch_statistics(&self, statistics: &mut [f64]) {
        self.model.batch_statistics(&self.workspace, statistics);
    }

    /// Takes a grain's statistics into the running ones.
    pub(crate) fn update_buffers(&mut self, statistics: &[f64]) {
        self.model.update_buffers(&mut self.buffers, statistics);
    }

    /// What the last forward put out: shape and numbers. Backward gives them up.
    pub(crate) fn logits(&self) -> Option<(&Meta, &[f32])> {
        let output = self.output?;
        Some((self.tape.meta(output).ok()?, self.tape.values(output).ok()?))
    }

    /// Gradients of the last forward's loss sum, times `scale`, into `sink`.
    ///
    /// # Errors
    /// When the loss guest's graph does not lead to a differentiable sum.
    pub(crate) fn backward(
        &mut self,
        value: &mut LossValue,
        scale: f32,
        accumulate: Accumulate,
        sink: &mut dyn GradSink<f32>,
    ) -> Result<(), OpError> {
        match &mut value.seed {
            Seed::Sum(sum) => {
                self.tape.backward(&[(*sum, &[scale])], &self.weights, accumulate, sink)
            }
            Seed::Output(output, gradient) => {
                if scale != 1.0 {
                    gradient.iter_mut().for_each(|gradient| *gradient *= scale);
                }
                self.tape.backward(&[(*output, gradient)], &self.weights, accumulate, sink)
            }
        }
    }

    /// That the batch has what the model reads.
    fn check_inputs(&self, batch: &Batch, samples: usize) -> Result<(), GrainError> {
        for input in self.model.inputs() {
            match batch.tensors.iter().find(|tensor| tensor.name == input.name) {
                Some(tensor) => {
                    input.check(&meta(tensor), samples).map_err(GrainError::Input)?;
                }
                None if input.is_required => {
                    let found = batch.tensors.iter().map(|tensor| tensor.name.clone()).collect();
                    return Err(GrainError::NoInput { name: input.name, found });
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Classes of a classifier that answers once a sample.
    fn classes(&self) -> Option<usize> {
        let output = self.model.outputs().first()?;
        (output.shape.len() == 1).then(|| output.classes())
    }

    /// An index that lies outside of the classes is a label: says whose.
    fn name_label(&self, error: LossError, samples: &[u64]) -> GrainError {
        match error {
            LossError::Operation(OpError::IndexOutOfRange { row, index: label, len, .. })
                if Some(len) == self.classes() && row < samples.len() =>
            {
                GrainError::Label { sample: samples[row], label, classes: len }
            }
            other => GrainError::Loss(other),
        }
    }
}

impl GrainError {
    /// As the agent hears it.
    pub(crate) fn failure(&self, call: GuestCall<'_>) -> Failure {
        match self {
            Self::Loss(LossError::Guest(error)) => Failure::of_guest(error, call),
            Self::Label { sample, label, classes } => self.shape(call).with_evidence(
                json!({ "guest": "loader", "sample": sample, "label": label, "classes": classes }),
            ),
            Self::Token { sample, input, token, vocabulary } => {
                self.shape(call).with_evidence(json!({
                    "guest": "loader", "sample": sample, "tensor": input, "token": token,
                    "vocabulary": vocabulary,
                }))
            }
            Self::NoInput { .. }
            | Self::Input(_)
            | Self::Model(_)
            | Self::Loss(LossError::Operation(_) | LossError::Metrics { .. }) => self.shape(call),
            Self::Loss(LossError::Memory { .. }) => {
                Failure::new(FailureCode::GuestMemoryLimit, self.to_string()).of_rank(call.rank)
            }
        }
    }

    fn shape(&self, call: GuestCall<'_>) -> Failure {
        Failure::new(FailureCode::GuestShape, lockstep_service::chain(self)).of_rank(call.rank)
    }
}

/// An index that a table does not have is a token: says whose.
fn name_token(error: OpError, batch: &Batch, samples: &[u64]) -> GrainError {
    let OpError::IndexOutOfRange { row, index: token, len: vocabulary, .. } = error else {
        return GrainError::Model(error);
    };
    let place = batch.tensors.iter().find_map(|tensor| match &tensor.data {
        BatchData::I64(data) if data.get(row) == Some(&token) => {
            let sample = samples.get(row / (data.len() / samples.len().max(1)).max(1))?;
            Some((*sample, tensor.name.clone()))
        }
        BatchData::I64(_) | BatchData::F32(_) => None,
    });
    match place {
        Some((sample, input)) => GrainError::Token { sample, input, token, vocabulary },
        None => GrainError::Model(error),
    }
}

/// Kind and shape of a batch's tensor.
pub(crate) fn meta(tensor: &BatchTensor) -> Meta {
    match tensor.data {
        BatchData::F32(_) => Meta::f32(tensor.shape.clone()),
        BatchData::I64(_) => Meta::i64(tensor.shape.clone()),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_models::{IDS, KINDS};

    use super::*;

    #[test]
    fn a_token_that_a_table_lacks_is_told_with_sample_and_tensor() {
        let tensor = |name: &str, data: Vec<i64>| BatchTensor {
            name: name.to_owned(),
            shape: vec![2, 3],
            data: BatchData::I64(data),
        };
        let tensors =
            vec![tensor(IDS, vec![1, 2, 3, 4, 5, 6]), tensor(KINDS, vec![0, 0, 0, 0, 9, 0])];
        let batch = Batch { tensors };
        let error = |index| {
            let error = OpError::IndexOutOfRange { op: "embedding", row: 4, index, len: 5 };
            name_token(error, &batch, &[70, 80]).to_string()
        };
        assert_eq!(error(5), "sample 80 has 5 in `input_ids`, where the model takes 0 to 4");
        assert_eq!(error(9), "sample 80 has 9 in `token_type_ids`, where the model takes 0 to 4");
        assert_eq!(error(7), "the model's forward pass failed");
    }
}
