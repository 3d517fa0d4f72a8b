//! Losses as numbers: outputs and batch go in as bytes, the sum and its gradients come out.

use std::fmt;

use crate::bindings::loss_raw::LossRawGuest;
use crate::bindings::loss_raw::exports::lockstep::guest::loss_raw::{Output, View};
use crate::bindings::types::Dtype;
use crate::error::GuestError;
use crate::guest::Guest;
use crate::host::batch::{Batch, BatchData};
use crate::host::log::LogSink;
use crate::host::{check_name, guest_error};
use crate::limits::Limits;
use crate::loss::METRICS_CAP;
use crate::{GuestComponent, Sandbox, World};

/// The call, in messages.
const COMPUTE: &str = "loss-raw.compute";

/// A raw loss guest, used for every grain.
pub struct RawLoss {
    guest: Guest,
    bindings: LossRawGuest,
    config: String,
    limits: Limits,
}

/// What it made of one grain. All numbers are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct RawOutput {
    /// Numerator of the loss.
    pub sum: f64,
    /// Denominator of the loss; not negative.
    pub weight: f64,
    /// For each output of the model, in the order given: the derivative of `sum` by it.
    pub grads: Vec<(String, Vec<f32>)>,
    /// Name, sum, weight.
    pub metrics: Vec<(String, f64, f64)>,
}

impl fmt::Debug for RawLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawLoss").field("guest", &self.guest).finish_non_exhaustive()
    }
}

impl RawLoss {
    /// Starts the guest.
    pub fn open(
        sandbox: &Sandbox,
        component: &GuestComponent,
        limits: Limits,
        config_json: &str,
        log: LogSink,
    ) -> Result<Self, GuestError> {
        let pre = component.expect(World::LossRaw)?;
        let mut guest = Guest::new(sandbox, limits, log);
        let bindings = guest.call("loss-raw.open", |store| {
            let instance = pre.instantiate(&mut *store)?;
            LossRawGuest::new(store, &instance)
        })?;
        Ok(Self { guest, bindings, config: config_json.to_owned(), limits })
    }

    /// Loss and gradients of one grain. Outputs are name, shape, elements.
    pub fn compute(
        &mut self,
        outputs: &[(&str, &[usize], &[f32])],
        batch: &Batch,
    ) -> Result<RawOutput, GuestError> {
        let views = outputs.iter().map(|(name, shape, data)| {
            let data = data.iter().flat_map(|value| value.to_le_bytes()).collect();
            view(name, Dtype::F32, shape, data)
        });
        let views = views.collect::<Result<Vec<_>, _>>()?;
        let batch = batch.tensors.iter().map(|tensor| match &tensor.data {
            BatchData::F32(data) => {
                let data = data.iter().flat_map(|value| value.to_le_bytes()).collect();
                view(&tensor.name, Dtype::F32, &tensor.shape, data)
            }
            BatchData::I64(data) => {
                let data = data.iter().flat_map(|value| value.to_le_bytes()).collect();
                view(&tensor.name, Dtype::S64, &tensor.shape, data)
            }
        });
        let batch = batch.collect::<Result<Vec<_>, _>>()?;
        let answer = self.guest.call(COMPUTE, |store| {
            let loss = self.bindings.lockstep_guest_loss_raw();
            loss.call_compute(store, &self.config, &views, &batch)
        })?;
        let output = answer.map_err(|error| guest_error(COMPUTE, error))?;
        self.check(outputs, output)
    }

    fn check(
        &self,
        outputs: &[(&str, &[usize], &[f32])],
        mut output: Output,
    ) -> Result<RawOutput, GuestError> {
        finite("the loss's sum", output.sum)?;
        not_negative("the loss's weight", output.weight)?;
        let bytes = output.grads.iter().map(|(_, grad)| size_of_val(grad.as_slice()) as u64).sum();
        if self.limits.output_bytes < bytes {
            let (what, limit) = (COMPUTE.to_owned(), self.limits.output_bytes);
            return Err(GuestError::OutputLimit { what, asked: Some(bytes), limit });
        }
        if output.grads.len() != outputs.len() {
            let names: Vec<&str> = outputs.iter().map(|(name, ..)| *name).collect();
            let got = format!("{} of them", output.grads.len());
            return Err(shape("the list of gradients", format!("one each of {names:?}"), got));
        }
        let mut grads = Vec::with_capacity(outputs.len());
        for (name, _, data) in outputs {
            let Some(at) = output.grads.iter().position(|(given, _)| given == name) else {
                let got = "missing".to_owned();
                return Err(shape(&format!("the gradient of {name:?}"), "given".to_owned(), got));
            };
            let (name, grad) = output.grads.swap_remove(at);
            let subject = format!("the gradient of {name:?}");
            if grad.len() != data.len() {
                let expected = format!("{} numbers", data.len());
                return Err(shape(&subject, expected, format!("{} numbers", grad.len())));
            }
            if let Some(at) = grad.iter().position(|value| !value.is_finite()) {
                finite(&format!("{subject} at {at}"), f64::from(grad[at]))?;
            }
            grads.push((name, grad));
        }
        let metrics = check_metrics(output.metrics)?;
        Ok(RawOutput { sum: output.sum, weight: output.weight, grads, metrics })
    }
}

fn check_metrics(metrics: Vec<(String, f64, f64)>) -> Result<Vec<(String, f64, f64)>, GuestError> {
    if METRICS_CAP < metrics.len() {
        let expected = format!("at most {METRICS_CAP}");
        return Err(shape("the number of metrics", expected, metrics.len().to_string()));
    }
    for (at, (name, sum, weight)) in metrics.iter().enumerate() {
        check_name(COMPUTE, "a metric's name", name)?;
        if metrics[..at].iter().any(|(earlier, ..)| earlier == name) {
            let (subject, got) = (format!("metric {name:?}"), "named twice".to_owned());
            return Err(shape(&subject, "named once".to_owned(), got));
        }
        finite(&format!("metric {name:?}'s sum"), *sum)?;
        not_negative(&format!("metric {name:?}'s weight"), *weight)?;
    }
    Ok(metrics)
}

fn view(name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) -> Result<View, GuestError> {
    let axes = shape.iter().map(|&axis| u32::try_from(axis)).collect::<Result<_, _>>();
    let shape = axes.map_err(|_| GuestError::Host(format!("{name:?} of {shape:?} is too long")))?;
    Ok(View { name: name.to_owned(), dtype, shape, data })
}

fn finite(subject: &str, value: f64) -> Result<(), GuestError> {
    if value.is_finite() {
        return Ok(());
    }
    let (what, subject) = (COMPUTE.to_owned(), subject.to_owned());
    Err(GuestError::NonFinite { what, subject, value: value.to_string() })
}

fn not_negative(subject: &str, value: f64) -> Result<(), GuestError> {
    finite(subject, value)?;
    if value < 0.0 {
        return Err(shape(subject, "at least 0".to_owned(), value.to_string()));
    }
    Ok(())
}

fn shape(subject: &str, expected: String, got: String) -> GuestError {
    GuestError::Shape { what: COMPUTE.to_owned(), subject: subject.to_owned(), expected, got }
}
