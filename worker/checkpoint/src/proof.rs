//! Digests of a state's parts: written when it is saved, compared when it has been restored. A part is all there again, bit
//! for bit and each tensor under its own name, or the restore is refused.

use std::collections::BTreeMap;

use camino::Utf8Path;
use lockstep_api::{Digest, EMA_PREFIX, HOOK_PREFIX};
use lockstep_tensor::Layout;
use sha2::{Digest as _, Sha256};

use crate::file::{HOOK_PARTS, moment_prefix};
use crate::{CheckpointError, Meta, State};

/// Floats that are made bytes of at once.
const FLOATS_AT_ONCE: usize = 4096;

/// The SHA-256 of each part, by its name: over names and numbers of its tensors in the order of names, so that it does not
/// depend on where they lie in the arena.
pub(crate) fn digests(state: &State<'_>) -> BTreeMap<String, Digest> {
    let State { layout, weights, buffer_layout, buffers, average, hook, optimizer } = state;
    let named = |prefix: &str| prefix.trim_end_matches('.').to_owned();
    let mut digests = BTreeMap::from([
        ("weights".to_owned(), of_arena(layout, weights)),
        ("buffers".to_owned(), of_arena(buffer_layout, buffers)),
    ]);
    for (moment, values) in &optimizer.moments {
        digests.insert(named(&moment_prefix(moment)), of_arena(layout, values));
    }
    if let Some(average) = average {
        digests.insert(named(EMA_PREFIX), of_arena(layout, average));
    }
    for (part, values) in HOOK_PARTS.iter().zip(hook.iter().flatten()) {
        let mut hash = Sha256::new();
        add(&mut hash, values);
        digests.insert(format!("{HOOK_PREFIX}{part}"), finish(hash));
    }
    digests
}

/// Compares a restored state with what was saved. A file from before there were digests has nothing to compare with.
pub(crate) fn compare(
    path: &Utf8Path,
    meta: &Meta,
    restored: &State<'_>,
) -> Result<(), CheckpointError> {
    if meta.digests.is_empty() {
        return Ok(());
    }
    for (part, found) in digests(restored) {
        let saved = meta.digests.get(&part);
        if saved != Some(&found) {
            let expected = saved.map_or_else(|| "nothing".to_owned(), Digest::to_string);
            let found = found.to_string();
            return Err(CheckpointError::Restored { path: path.to_owned(), part, expected, found });
        }
    }
    Ok(())
}

fn of_arena(layout: &Layout, values: &[f32]) -> Digest {
    let mut params: Vec<_> = layout.params().iter().collect();
    params.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hash = Sha256::new();
    for param in params {
        hash.update(param.name.as_bytes());
        hash.update([0]);
        add(&mut hash, &values[param.range.clone()]);
    }
    finish(hash)
}

fn add(hash: &mut Sha256, values: &[f32]) {
    let mut octets = Vec::with_capacity(4 * FLOATS_AT_ONCE.min(values.len()));
    for values in values.chunks(FLOATS_AT_ONCE) {
        octets.clear();
        octets.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        hash.update(&octets);
    }
}

fn finish(hash: Sha256) -> Digest {
    Digest::from_sha256(hash.finalize().into())
}
