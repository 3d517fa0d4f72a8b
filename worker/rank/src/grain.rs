//! One grain through model and loss: what training, evaluation and the check at submit have in common.

use std::sync::Arc;

use lockstep_api::FailureCode;
use lockstep_sandbox::{Batch, BatchData, BatchTensor};
use lockstep_tensor::{Accumulate, DType, GradSink, Meta, OpError, Tape, Value};
use serde_json::json;

use crate::failure::{Failure, GuestCall};
use crate::loss::{Loss, LossError, LossValue, Seed};
use crate::model::{INPUT, Model};

/// Model, loss, weights, and the tape they run on.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Names and shapes.
    pub(crate) model: Model,
    /// The loss guest.
    pub(crate) loss: Loss,
    /// In arena order.
    pub(crate) weights: Vec<f32>,
    tape: Tape<f32>,
}

/// Why a grain has no loss.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrainError {
    /// The loader has not put the tensor that the model reads.
    #[error("the loader puts no tensor `{INPUT}`, only {found:?}")]
    NoInput {
        /// What it puts.
        found: Vec<String>,
    },
    /// It has another dtype or number of axes.
    #[error("the loader's tensor `{INPUT}` is {found}, expected f32[{samples}, inputs]")]
    InputKind {
        /// As put.
        found: Meta,
        /// Samples in the batch.
        samples: usize,
    },
    /// Its samples are longer or shorter than the model's input.
    #[error("the loader's tensor `{INPUT}` is {found}, but model.inputs is {inputs}")]
    InputLength {
        /// As put.
        found: Meta,
        /// As the model has it.
        inputs: usize,
    },
    /// A label is outside of the model's classes.
    #[error("sample {sample} has label {label}, but model.classes is {classes} (labels 0 to {})", classes - 1)]
    Label {
        /// The sample.
        sample: u64,
        /// Its label.
        label: i64,
        /// As the model has it.
        classes: usize,
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
    pub(crate) fn new(model: Model, loss: Loss, weights: Vec<f32>) -> Self {
        let tape = Tape::new(Arc::clone(model.layout()));
        Self { model, loss, weights, tape }
    }

    /// Model, then loss. `samples`: which samples the batch is of, for messages.
    ///
    /// # Errors
    /// See [`GrainError`]. Numbers that are not finite are no error here.
    pub(crate) fn forward(
        &mut self,
        batch: &Batch,
        samples: &[u64],
    ) -> Result<LossValue, GrainError> {
        self.tape.clear();
        let input = self.check_input(batch, samples.len())?;
        let place = |tensor: &BatchTensor| match &tensor.data {
            BatchData::F32(data) => self.tape.input(&tensor.shape, data),
            BatchData::I64(data) => self.tape.index(&tensor.shape, data),
        };
        let inputs = batch.tensors.iter().map(place).collect::<Result<Vec<Value>, _>>();
        let inputs = inputs.map_err(GrainError::Model)?;
        let output = self.model.forward(&mut self.tape, inputs[input], &self.weights);
        let output = output.map_err(GrainError::Model)?;
        let value = self.loss.compute(&mut self.tape, output, batch, &inputs, &self.weights);
        value.map_err(|error| self.name_label(error, samples))
    }

    /// Gradients of the last forward's loss sum into `sink`.
    ///
    /// # Errors
    /// When the loss guest's graph does not lead to a differentiable sum.
    pub(crate) fn backward(
        &mut self,
        value: &LossValue,
        accumulate: Accumulate,
        sink: &mut dyn GradSink<f32>,
    ) -> Result<(), OpError> {
        match &value.seed {
            Seed::Sum(sum) => {
                self.tape.backward(&[(*sum, &[1.0])], &self.weights, accumulate, sink)
            }
            Seed::Output(output, gradient) => {
                self.tape.backward(&[(*output, gradient)], &self.weights, accumulate, sink)
            }
        }
    }

    /// The place of the model's input among the batch's tensors.
    fn check_input(&self, batch: &Batch, samples: usize) -> Result<usize, GrainError> {
        let Some(place) = batch.tensors.iter().position(|tensor| tensor.name == INPUT) else {
            let found = batch.tensors.iter().map(|tensor| tensor.name.clone()).collect();
            return Err(GrainError::NoInput { found });
        };
        let tensor = &batch.tensors[place];
        let dtype = match tensor.data {
            BatchData::F32(_) => DType::F32,
            BatchData::I64(_) => DType::I64,
        };
        let inputs = self.model.inputs();
        match (dtype, tensor.shape.as_slice()) {
            (DType::F32, &[count, length]) if count == samples && length == inputs => Ok(place),
            (DType::F32, &[count, _]) if count == samples => {
                let found = Meta::new(dtype, tensor.shape.clone());
                Err(GrainError::InputLength { found, inputs })
            }
            _ => {
                let found = Meta::new(dtype, tensor.shape.clone());
                Err(GrainError::InputKind { found, samples })
            }
        }
    }

    /// An index that lies outside of the classes is a label: says whose.
    fn name_label(&self, error: LossError, samples: &[u64]) -> GrainError {
        match error {
            LossError::Operation(OpError::IndexOutOfRange { row, index: label, len, .. })
                if len == self.model.classes() && row < samples.len() =>
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
            Self::NoInput { .. }
            | Self::InputKind { .. }
            | Self::InputLength { .. }
            | Self::Model(_)
            | Self::Loss(LossError::Operation(_) | LossError::Metrics { .. }) => self.shape(call),
        }
    }

    fn shape(&self, call: GuestCall<'_>) -> Failure {
        Failure::new(FailureCode::GuestShape, lockstep_service::chain(self)).of_rank(call.rank)
    }
}
