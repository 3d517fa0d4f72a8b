//! Of a checkpoint's file the model alone, under the names of its architecture's library.

use std::collections::{BTreeMap, HashMap};

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{EMA_PREFIX, is_training_state};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::failure::Failure;

/// Which of a checkpoint's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weights {
    /// Those after the last step.
    Last,
    /// Their running mean.
    Ema,
}

/// Writes the model's tensors of the checkpoint at `from` to `to`: no moments, and the mean only in the weights' place.
///
/// # Errors
/// A file that cannot be read or written; weights that are not in it. There is no file at `to` then that was not there before.
pub(crate) fn keep_model(from: &Utf8Path, to: &Utf8Path, weights: Weights) -> anyhow::Result<()> {
    let bytes = std::fs::read(from).with_context(|| format!("reading {from}"))?;
    let file = SafeTensors::deserialize(&bytes).with_context(|| format!("reading {from}"))?;
    let mut tensors: BTreeMap<&str, TensorView<'_>> =
        file.iter().filter(|(name, _)| !is_training_state(name)).collect();
    if weights == Weights::Ema {
        let means: Vec<_> = file
            .iter()
            .filter_map(|(name, mean)| Some((name.strip_prefix(EMA_PREFIX)?, mean)))
            .collect();
        if means.is_empty() {
            let text = "--ema: the checkpoint has no mean of the weights; a job with `train.ema` keeps one";
            return Err(Failure::Usage(text.to_owned()).into());
        }
        tensors.extend(means);
    }
    // Libraries of others ask for it.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let partial = Utf8PathBuf::from(format!("{to}.partial"));
    safetensors::serialize_to_file(tensors, Some(metadata), partial.as_std_path())
        .with_context(|| format!("writing {partial}"))?;
    std::fs::rename(&partial, to).with_context(|| format!("renaming {partial} to {to}"))
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    #[test]
    fn only_the_model_is_kept_with_the_weights_that_are_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let numbers = [1_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes);
        let view = |index: usize| TensorView::new(Dtype::F32, vec![1], &numbers[index]).unwrap();
        let names = ["a.weight", "bn.running_mean", "ema.a.weight", "optimizer.exp_avg.a.weight"];
        let all = names.iter().enumerate().map(|(index, name)| (*name, view(index)));
        let (from, to) = (folder.join("all"), folder.join("model"));
        safetensors::serialize_to_file(all, None, from.as_std_path()).unwrap();
        for (weights, first) in [(Weights::Last, 1_f32), (Weights::Ema, 3.0)] {
            keep_model(&from, &to, weights).unwrap();
            let bytes = std::fs::read(&to).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let mut kept = file.names();
            kept.sort_unstable();
            assert_eq!(kept, ["a.weight", "bn.running_mean"]);
            assert_eq!(file.tensor("a.weight").unwrap().data(), first.to_le_bytes());
            assert_eq!(file.tensor("bn.running_mean").unwrap().data(), 2_f32.to_le_bytes());
        }
        let error = keep_model(&to, &folder.join("none"), Weights::Ema).unwrap_err();
        assert!(error.to_string().contains("has no mean"), "{error}");
        assert!(!folder.join("none").exists());
    }
}
