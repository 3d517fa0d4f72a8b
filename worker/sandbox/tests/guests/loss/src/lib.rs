//! Cross entropy as an expression. Each call is a guest's first: `after_calls` other than 0 means never.

use lockstep_guest::{Built, Error, Loss, Tensor, Tensors, config, export_loss};
use misbehave::{Config, Mode, misbehave};

struct Misbehaving;

impl Loss for Misbehaving {
    fn build(settings: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error> {
        let Config { mode, after_calls, .. } = config(settings)?;
        let (logits, labels) = (outputs.get("logits")?, batch.get("y")?);
        let samples = || Tensor::number(labels.rows() as f32);
        let mut losses = logits.log_softmax().gather(labels).neg();
        if after_calls == 0 {
            misbehave(mode)?;
            match mode {
                Mode::Shape => losses = logits.matmul(logits),
                // The logarithm of a negative number.
                Mode::Nan => losses = logits.exp().neg().log(),
                // 655 million numbers for 16 samples.
                Mode::Graph => {
                    let n = 10 * labels.rows() as u32;
                    let pairs = logits.reshape(&[n, 1]).matmul(&logits.reshape(&[1, n]));
                    losses = pairs.reshape(&[n * n, 1]).matmul(&pairs.reshape(&[1, n * n]));
                }
                Mode::Huge => {
                    for _ in 0..64 {
                        drop(Tensor::constant(&[1 << 20], &vec![0.0; 1 << 20]));
                    }
                }
                Mode::Blind if labels.rows() < 16 => {
                    let rows = labels.rows() as u32;
                    losses = Tensor::constant(&[rows], &vec![1.0; labels.rows() as usize]);
                }
                _ => {}
            }
        }
        let right = logits.argmax().equal(labels).sum();
        Ok(Built::new(losses.sum(), samples()).metric("accuracy", right, samples()))
    }
}

export_loss!(Misbehaving);
