//! Writing aside, reading back, renaming; and loading with every name and shape compared.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{EMA_PREFIX, HOOK_PREFIX, OPTIMIZER_PREFIX};
use lockstep_tensor::{Layout, Param};
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensors, View};

use crate::{CheckpointError, FORMAT_VERSION, Meta, State, StateMut, curve, proof};

/// Where [`Meta`] lies in the file's own metadata.
const META_KEY: &str = "lockstep";
/// The tensors of a communication hook, each of one axis.
pub(crate) const HOOK_PARTS: [&str; 2] = ["shared", "leftovers"];

/// Writes `state` to `path`, durably: to a name beside it, synchronised, read back and compared, then renamed.
/// Whoever sees `path` sees all of it. `meta` is completed by the digests of the state's parts.
///
/// # Errors
/// `Io`, `ReadBack`. The partial file is removed as far as that works.
pub fn save(path: &Utf8Path, state: &State<'_>, meta: &Meta) -> Result<(), CheckpointError> {
    let partial = Utf8PathBuf::from(format!("{path}.partial"));
    let meta = Meta { digests: proof::digests(state), ..meta.clone() };
    let written = write_and_compare(&partial, state, &meta)
        .and_then(|()| fs::rename(&partial, path).map_err(io("rename to", path)))
        .and_then(|()| sync_folder(path));
    if written.is_err() {
        // Already failing: the first error is the one worth telling, and a leftover is overwritten next time.
        drop(fs::remove_file(&partial));
    }
    written
}

/// Fills `state` from the file at `path`, after comparing names, shapes and settings. Returns its metadata.
///
/// `settings`: of the job that wants to resume, from [`crate::curve_settings`].
///
/// # Errors
/// Any; `state` is then unchanged but for `Tensor` and `Restored`, where it may be half filled, and must not be used.
pub fn load(
    path: &Utf8Path,
    settings: &serde_json::Value,
    state: &mut StateMut<'_>,
) -> Result<Meta, CheckpointError> {
    let bytes = fs::read(path).map_err(io("read", path))?;
    let (tensors, meta) = parse(path, &bytes)?;
    curve::compare(&meta.settings, settings)?;
    refuse_unknown(&tensors, &parts(&state.view()), state.hook.is_some())?;
    fill(&tensors, state.layout, "", state.weights)?;
    fill(&tensors, state.buffer_layout, "", state.buffers)?;
    for (moment, values) in &mut state.optimizer.moments {
        fill(&tensors, state.layout, &moment_prefix(moment), values)?;
    }
    if let Some(average) = state.average.as_deref_mut() {
        fill(&tensors, state.layout, EMA_PREFIX, average)?;
    }
    if let Some(hook) = state.hook.as_deref_mut() {
        for (part, values) in HOOK_PARTS.iter().zip(hook) {
            *values = read_list(&tensors, format!("{HOOK_PREFIX}{part}"))?;
        }
    }
    state.optimizer.step = meta.optimizer_step;
    let hook = state.hook.as_deref().map(|[shared, leftovers]| [&shared[..], &leftovers[..]]);
    proof::compare(path, &meta, &State { hook, ..state.view() })?;
    Ok(meta)
}

impl StateMut<'_> {
    fn view(&self) -> State<'_> {
        State {
            layout: self.layout,
            weights: self.weights,
            buffer_layout: self.buffer_layout,
            buffers: self.buffers,
            average: self.average.as_deref(),
            hook: None,
            optimizer: self.optimizer,
        }
    }
}

fn write_and_compare(
    partial: &Utf8Path,
    state: &State<'_>,
    meta: &Meta,
) -> Result<(), CheckpointError> {
    let text = serde_json::to_string(meta).expect("metadata has string keys only");
    let pieces = pieces(state);
    let info = HashMap::from([(META_KEY.to_owned(), text)]);
    let data = pieces.iter().map(|piece| (piece.name.as_str(), piece));
    safetensors::serialize_to_file(data, Some(info), partial.as_std_path())
        .map_err(|source| CheckpointError::Format { path: partial.to_owned(), source })?;
    File::open(partial).and_then(|file| file.sync_all()).map_err(io("synchronise", partial))?;
    read_back(partial, &pieces, meta)
}

fn read_back(path: &Utf8Path, pieces: &[Piece<'_>], meta: &Meta) -> Result<(), CheckpointError> {
    let differs = |what: String| CheckpointError::ReadBack { path: path.to_owned(), what };
    let bytes = fs::read(path).map_err(io("read back", path))?;
    let (tensors, found) = parse(path, &bytes).map_err(|error| differs(error.to_string()))?;
    if found != *meta {
        return Err(differs("metadata".to_owned()));
    }
    if tensors.len() != pieces.len() {
        return Err(differs(format!("{} tensors of {}", tensors.len(), pieces.len())));
    }
    for piece in pieces {
        let tensor = tensors.tensor(&piece.name).map_err(|error| differs(error.to_string()))?;
        if tensor.shape() != &*piece.shape || tensor.data() != &*piece.data() {
            return Err(differs(format!("tensor `{}`", piece.name)));
        }
    }
    Ok(())
}

pub(crate) fn parse<'a>(
    path: &Utf8Path,
    bytes: &'a [u8],
) -> Result<(SafeTensors<'a>, Meta), CheckpointError> {
    let format = |source| CheckpointError::Format { path: path.to_owned(), source };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(format)?;
    let meta = parse_meta(path, &header)?;
    Ok((SafeTensors::deserialize(bytes).map_err(format)?, meta))
}

fn parse_meta(path: &Utf8Path, header: &Metadata) -> Result<Meta, CheckpointError> {
    let bad = |message: String| CheckpointError::Meta { path: path.to_owned(), message };
    let text = header.metadata().as_ref().and_then(|info| info.get(META_KEY));
    let text = text.ok_or_else(|| bad("the key is missing".to_owned()))?;
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    // The version is read first: the fields of another one need not parse.
    match value["version"].as_u64() {
        Some(found) if found == u64::from(FORMAT_VERSION) => {}
        Some(found) => return Err(CheckpointError::Version { path: path.to_owned(), found }),
        None => return Err(bad("it has no version".to_owned())),
    }
    serde_json::from_value(value).map_err(|error| bad(error.to_string()))
}

/// One tensor on its way out: a parameter's part of a flat arena.
struct Piece<'a> {
    name: String,
    shape: Cow<'a, [usize]>,
    values: &'a [f32],
}

impl View for &Piece<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Piece::data(self).into()
    }
    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

impl Piece<'_> {
    /// safetensors is little-endian on every machine.
    fn data(&self) -> Vec<u8> {
        self.values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

pub(crate) fn moment_prefix(moment: &str) -> String {
    format!("{OPTIMIZER_PREFIX}{moment}.")
}

/// One arena: what its tensors' names begin with, where each lies, its numbers.
struct Part<'a> {
    prefix: String,
    layout: &'a Layout,
    values: &'a [f32],
}

fn parts<'a>(state: &State<'a>) -> Vec<Part<'a>> {
    let part = |prefix: &str, layout, values| Part { prefix: prefix.to_owned(), layout, values };
    let mut parts =
        vec![part("", state.layout, state.weights), part("", state.buffer_layout, state.buffers)];
    for (moment, values) in &state.optimizer.moments {
        parts.push(part(&moment_prefix(moment), state.layout, values));
    }
    parts.extend(state.average.map(|values| part(EMA_PREFIX, state.layout, values)));
    parts
}

fn pieces<'a>(state: &State<'a>) -> Vec<Piece<'a>> {
    let pieces = |part: Part<'a>| {
        part.layout.params().iter().map(move |param| Piece {
            name: tensor_name(&part.prefix, param),
            shape: Cow::Borrowed(&param.shape),
            values: &part.values[param.range.clone()],
        })
    };
    let hook = HOOK_PARTS.iter().zip(state.hook.into_iter().flatten()).map(|(part, values)| {
        let name = format!("{HOOK_PREFIX}{part}");
        Piece { name, shape: Cow::Owned(vec![values.len()]), values }
    });
    parts(state).into_iter().flat_map(pieces).chain(hook).collect()
}

fn tensor_name(prefix: &str, param: &Param) -> String {
    format!("{prefix}{}", param.name)
}

pub(crate) fn fill(
    tensors: &SafeTensors<'_>,
    layout: &Layout,
    prefix: &str,
    arena: &mut [f32],
) -> Result<(), CheckpointError> {
    for param in layout.params() {
        let name = tensor_name(prefix, param);
        let tensor = tensors.tensor(&name).ok();
        match tensor {
            Some(tensor) if tensor.dtype() == Dtype::F32 && tensor.shape() == param.shape => {
                let values = &mut arena[param.range.clone()];
                values.iter_mut().zip(floats(&tensor)).for_each(|(to, value)| *to = value);
            }
            found => {
                let expected = format!("{:?} {:?}", Dtype::F32, param.shape);
                return Err(CheckpointError::Tensor { name, expected, found: describe(found) });
            }
        }
    }
    Ok(())
}

/// A tensor of one axis, however long.
fn read_list(tensors: &SafeTensors<'_>, name: String) -> Result<Vec<f32>, CheckpointError> {
    match tensors.tensor(&name).ok() {
        Some(tensor) if tensor.dtype() == Dtype::F32 && tensor.shape().len() == 1 => {
            Ok(floats(&tensor).collect())
        }
        found => {
            let expected = format!("{:?} of one axis", Dtype::F32);
            Err(CheckpointError::Tensor { name, expected, found: describe(found) })
        }
    }
}

fn floats<'a>(tensor: &TensorView<'a>) -> impl Iterator<Item = f32> + use<'a> {
    let octets = tensor.data().chunks_exact(4);
    octets.map(|octets| f32::from_le_bytes(octets.try_into().expect("chunks of 4")))
}

fn refuse_unknown(
    tensors: &SafeTensors<'_>,
    parts: &[Part<'_>],
    has_hook: bool,
) -> Result<(), CheckpointError> {
    let names = |part: &Part<'_>| {
        let params = part.layout.params().iter();
        params.map(|param| tensor_name(&part.prefix, param)).collect::<Vec<_>>()
    };
    let mut known: BTreeSet<String> = parts.iter().flat_map(names).collect();
    if has_hook {
        known.extend(HOOK_PARTS.map(|part| format!("{HOOK_PREFIX}{part}")));
    }
    refuse_other(tensors, |name| known.contains(name))
}

/// Refuses the first tensor, by name, that is not known.
pub(crate) fn refuse_other(
    tensors: &SafeTensors<'_>,
    is_known: impl Fn(&str) -> bool,
) -> Result<(), CheckpointError> {
    let unknown = tensors.names().into_iter().filter(|name| !is_known(name)).min();
    match unknown {
        None => Ok(()),
        Some(name) => Err(CheckpointError::Tensor {
            name: name.to_owned(),
            expected: "nothing".to_owned(),
            found: describe(tensors.tensor(name).ok()),
        }),
    }
}

fn describe(tensor: Option<TensorView<'_>>) -> String {
    match tensor {
        None => "nothing".to_owned(),
        Some(tensor) => format!("{:?} {:?}", tensor.dtype(), tensor.shape()),
    }
}

/// A rename is durable once its folder is.
fn sync_folder(path: &Utf8Path) -> Result<(), CheckpointError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_str().is_empty() => folder,
        _ => Utf8Path::new("."),
    };
    File::open(folder).and_then(|file| file.sync_all()).map_err(io("synchronise", folder))
}

pub(crate) fn io(
    action: &'static str,
    path: &Utf8Path,
) -> impl FnOnce(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { action, path: path.to_owned(), source }
}
