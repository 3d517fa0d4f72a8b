//! Cross entropy as numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_guest::{Error, Output, RawLoss, View, config, export_raw_loss, find};
use misbehave::{Config, Mode, misbehave};

static CALLS: AtomicU64 = AtomicU64::new(0);

struct Misbehaving;

impl RawLoss for Misbehaving {
    fn compute(settings: &str, outputs: &[View], batch: &[View]) -> Result<Output, Error> {
        let Config { mode, after_calls, .. } = config(settings)?;
        let logits = find(outputs, "logits")?.floats()?;
        let labels = find(batch, "y")?.integers()?;
        let mut output = cross_entropy(&logits, &labels)?;
        if after_calls < 1 + CALLS.fetch_add(1, Ordering::Relaxed) {
            misbehave(mode)?;
            match mode {
                Mode::Shape => output.grads[0].1.truncate(1),
                Mode::Nan => output.grads[0].1[0] = f32::NAN,
                Mode::Huge => output.grads[0].1 = vec![0.0; 8 << 20],
                _ => {}
            }
        }
        Ok(output)
    }
}

fn cross_entropy(logits: &[f32], labels: &[i64]) -> Result<Output, Error> {
    let classes = logits.len() / labels.len().max(1);
    let (mut sum, mut right) = (0.0, 0.0);
    let mut grad = Vec::with_capacity(logits.len());
    for (row, &label) in logits.chunks_exact(classes.max(1)).zip(labels) {
        let label = usize::try_from(label).ok().filter(|label| *label < classes);
        let label = label.ok_or_else(|| Error::data("a label is no class"))?;
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = row.iter().map(|logit| (logit - most).exp()).sum();
        sum += f64::from(total.ln() + most - row[label]);
        let first = row.iter().position(|logit| *logit == most);
        right += f64::from(u8::from(first == Some(label)));
        grad.extend(row.iter().enumerate().map(|(class, logit)| {
            (logit - most).exp() / total - f32::from(u8::from(class == label))
        }));
    }
    let weight = labels.len() as f64;
    Ok(Output {
        sum,
        weight,
        grads: vec![("logits".to_owned(), grad)],
        metrics: vec![("accuracy".to_owned(), right, weight)],
    })
}

export_raw_loss!(Misbehaving);
