//! What PyTorch's two ranks saw, and how far ours may be from it.

use crate::{
    golden_training::{
        nets::Net,
        tolerance::{Golden, check, no_floor},
    },
    recording::Recording,
    threads::WORLD,
};

pub(crate) fn ranks() -> [Recording; WORLD] {
    [
        Recording::read(include_bytes!("../golden/ddp_rank0.safetensors")),
        Recording::read(include_bytes!("../golden/ddp_rank1.safetensors")),
    ]
}

pub(crate) fn settings() -> serde_json::Value {
    serde_json::from_str(include_str!("../golden/ddp.json")).unwrap()
}

/// The starting values of a model with the batches under `prefix`.
pub(crate) fn with_batches<N: Net>(rank: &Recording, prefix: &str) -> Golden {
    let mut golden = Golden::read::<N>();
    let double = &mut golden.double;
    let is_batch = |name: &str| name.starts_with("input.") || name.starts_with("target.");
    double.floats.retain(|name, _| !is_batch(name));
    double.ints.retain(|name, _| !is_batch(name));
    let batch =
        |name: &str| name.strip_prefix(prefix).filter(|name| is_batch(name)).map(str::to_owned);
    let floats = rank.floats.iter();
    double.floats.extend(floats.filter_map(|(name, values)| Some((batch(name)?, values.clone()))));
    let ints = rank.ints.iter();
    double.ints.extend(ints.filter_map(|(name, values)| Some((batch(name)?, values.clone()))));
    golden
}

/// What a tensor is compared by.
pub(crate) struct Scale {
    /// The greatest value of all tensors of the kind.
    pub(crate) greatest: f64,
    /// How far apart an optimizer may move two weights whose gradients are mathematically zero: it may blow up what
    /// rounding leaves of them.
    pub(crate) reach: f64,
}

/// Checks ours, and first that the truth is of the run that was recorded: PyTorch is as near to it as f32 can be.
pub(crate) fn check_tensor<N: Net>(
    prefix: &str,
    name: &str,
    [truth, recorded]: [&[f64]; 2],
    ours: &[f32],
    scale: &Scale,
) {
    let floor = 2e-5 * scale.greatest;
    let all = truth.iter().zip(recorded).zip(ours).map(|((t, r), o)| [*t, *r, f64::from(*o)]);
    let (free, bound): (Vec<_>, Vec<_>) =
        all.enumerate().partition(|(at, _)| N::is_free(name, *at));
    for (at, [truth, recorded, ours]) in free {
        let off = (ours - truth).abs().max((recorded - truth).abs());
        assert!(
            off <= floor.max(scale.reach),
            "{prefix}.{name}, {at}: {ours}, {truth}, {recorded}"
        );
    }
    for (at, [truth, recorded, _]) in &bound {
        let off = (recorded - truth).abs();
        assert!(off <= floor, "{prefix}.{name}, {at}: {truth}, but {recorded} is recorded");
    }
    let [truth, recorded, ours] =
        [0, 1, 2].map(|kind| bound.iter().map(|(_, values)| values[kind]).collect::<Vec<_>>());
    check::<f32>(&format!("{prefix}.{name}"), &truth, &recorded, &ours, no_floor);
}
