//! Weights to begin with, from a `safetensors` file.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use lockstep_api::is_training_state;
use lockstep_tensor::{Layout, Param};
use safetensors::{
    SafeTensorError, SafeTensors,
    tensor::{Dtype, TensorView},
};

use crate::{
    Model,
    builder::is_counter,
    half::{from_bf16, from_f16},
    safe,
};

/// A file that was refused. Nothing of it has been loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is no safetensors file, or none whose fault lies with one tensor.
    #[error("not a safetensors file")]
    Format(#[source] SafeTensorError),
    /// A tensor is missing, too many, of another shape or kind, or its bytes are not where the header says.
    #[error("tensor `{name}`: expected {expected}, found {found}")]
    Tensor {
        /// Its name: in the file, or, of a missing one, in the model.
        name: String,
        /// As the model has it, or `nothing`.
        expected: String,
        /// As the file has it, or `nothing`.
        found: String,
    },
    /// A number is NaN, infinite, or too large for an f32.
    #[error("tensor `{name}`: element {index} is {value}, expected a finite f32")]
    Number {
        /// The tensor's name in the file.
        name: String,
        /// Row-major.
        index: usize,
        /// As read.
        value: f64,
    },
    /// The memory to load into is not this model's.
    #[error("memory for {given} numbers, the model has {expected}")]
    Memory {
        /// Parameters or buffers of the model.
        expected: usize,
        /// As handed in.
        given: usize,
    },
}

/// What was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of the model's tensors that were in the file.
    pub loaded: usize,
    /// The model's tensors that the file lacks, sorted: they are as they were.
    pub kept: Vec<String>,
    /// The file's tensors that the model lacks, sorted.
    pub left_out: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors were loaded", self.loaded)?;
        for (names, what) in [
            (&self.kept, "of the model are not in the file"),
            (&self.left_out, "of the file are not in the model"),
        ] {
            if let Some(first) = names.first() {
                write!(f, "; {} {what}, first {first:?}", names.len())?;
            }
        }
        Ok(())
    }
}

impl Model {
    /// Fills weights and buffers from a file's bytes: f32, f16, bf16 and f64 are read and converted.
    ///
    /// Names are those of the architecture's library, older ones and those of a file without the head included;
    /// constants that libraries save along (causal masks, positions) and, of a checkpoint, what trains the model are
    /// passed over, and counters of batches may be absent. With `strict` every other tensor of the model has to be there and none besides; otherwise what is
    /// missing stays as it is. A tensor of another shape is refused either way.
    ///
    /// # Errors
    /// See [`LoadError`]; nothing has been changed then.
    pub fn load_weights(
        &self,
        weights: &mut [f32],
        buffers: &mut [f32],
        bytes: &[u8],
        strict: bool,
    ) -> Result<Report, LoadError> {
        for (layout, memory) in [(self.layout(), &*weights), (self.buffers(), &*buffers)] {
            let (expected, given) = (layout.len(), memory.len());
            if expected != given {
                return Err(LoadError::Memory { expected, given });
            }
        }
        let file = safe::parse(bytes)?;
        let tensors = self.named(&file)?;
        let mut report = Report::default();
        let mut taken = BTreeSet::new();
        let mut fresh = (weights.to_vec(), buffers.to_vec());
        fill(self.layout(), &tensors, &mut fresh.0, &mut report, &mut taken)?;
        fill(self.buffers(), &tensors, &mut fresh.1, &mut report, &mut taken)?;
        self.check_rest(&tensors, &taken, &mut report)?;
        report.kept.sort();
        if strict {
            refuse_difference(self, &report, &tensors)?;
        }
        weights.copy_from_slice(&fresh.0);
        buffers.copy_from_slice(&fresh.1);
        Ok(report)
    }

    /// The file's tensors under this model's names.
    fn named<'a>(&self, file: &'a SafeTensors<'a>) -> Result<Tensors<'a>, LoadError> {
        // A checkpoint of ours also holds what trains the model.
        let mut sorted: Vec<(&'a str, TensorView<'a>)> =
            file.iter().filter(|(name, _)| !is_training_state(name)).collect();
        sorted.sort_by(|a, b| a.0.cmp(b.0));
        let prefix = self.names.missing_prefix(sorted.iter().map(|(name, _)| *name));
        let mut named = Tensors::new();
        for (name, view) in sorted {
            let canonical = self.names.canonical(name, prefix);
            if self.names.is_constant(&canonical) {
                continue;
            }
            if let Some((first, _)) = named.get(&*canonical) {
                let expected = format!("only one, and `{first}` is another name of it");
                return Err(wrong(name, expected, describe(Some(&view))));
            }
            named.insert(canonical, (name, view));
        }
        Ok(named)
    }

    /// What of the file is not in the model: other names of tensors that are, and the rest.
    fn check_rest(
        &self,
        tensors: &Tensors<'_>,
        taken: &BTreeSet<&str>,
        report: &mut Report,
    ) -> Result<(), LoadError> {
        for (canonical, (name, view)) in tensors {
            if taken.contains(&**canonical) {
                continue;
            }
            let same = self.names.same_as(canonical).and_then(|of| Some((of, tensors.get(of)?)));
            match same {
                None => report.left_out.push((*name).to_owned()),
                Some((_, (_, other)))
                    if view.data() == other.data() && view.shape() == other.shape() => {}
                Some((of, _)) => {
                    let expected =
                        format!("the same numbers as in `{of}`, whose weights it shares");
                    return Err(wrong(name, expected, "others".to_owned()));
                }
            }
        }
        Ok(())
    }
}

/// By this model's name: the name in the file, and the tensor.
type Tensors<'a> = BTreeMap<Cow<'a, str>, (&'a str, TensorView<'a>)>;

fn fill<'l>(
    layout: &'l Layout,
    tensors: &Tensors<'_>,
    arena: &mut [f32],
    report: &mut Report,
    taken: &mut BTreeSet<&'l str>,
) -> Result<(), LoadError> {
    for param in layout.params() {
        match tensors.get(&*param.name) {
            Some((name, view)) => {
                read(name, view, param, &mut arena[param.range.clone()])?;
                taken.insert(&param.name);
                report.loaded += 1;
            }
            None if is_counter(&param.name) => {}
            None => report.kept.push(param.name.clone()),
        }
    }
    Ok(())
}

fn refuse_difference(
    model: &Model,
    report: &Report,
    tensors: &Tensors<'_>,
) -> Result<(), LoadError> {
    if let Some(name) = report.kept.first() {
        let found = |layout: &Layout| layout.id(name).and_then(|id| layout.param(id).cloned());
        let param = found(model.layout()).or_else(|| found(model.buffers()));
        let expected = format!("{:?}", param.map(|param| param.shape).unwrap_or_default());
        return Err(wrong(name, expected, describe(None)));
    }
    if let Some(name) = report.left_out.first() {
        let view = tensors.values().find(|(known, _)| known == name).map(|(_, view)| view);
        return Err(wrong(name, describe(None), describe(view)));
    }
    Ok(())
}

fn read(
    name: &str,
    view: &TensorView<'_>,
    param: &Param,
    values: &mut [f32],
) -> Result<(), LoadError> {
    let is_counter = is_counter(&param.name);
    if view.shape() != param.shape {
        return Err(wrong(name, format!("{:?}", param.shape), describe(Some(view))));
    }
    let data = view.data();
    let convert = Convert { name, values };
    match view.dtype() {
        Dtype::F32 => convert.each(data, |bytes| f64::from(f32::from_le_bytes(bytes))),
        Dtype::F64 => convert.each(data, f64::from_le_bytes),
        Dtype::F16 => convert.each(data, |bytes| f64::from(from_f16(u16::from_le_bytes(bytes)))),
        Dtype::BF16 => convert.each(data, |bytes| f64::from(from_bf16(u16::from_le_bytes(bytes)))),
        Dtype::I64 if is_counter => {
            convert.each(data, |bytes| i64::from_le_bytes(bytes).max(0) as f64)
        }
        _ => Err(wrong(name, "F32, F16, BF16 or F64".to_owned(), describe(Some(view)))),
    }
}

/// One tensor on its way into an arena.
struct Convert<'a> {
    name: &'a str,
    values: &'a mut [f32],
}

impl Convert<'_> {
    fn each<const N: usize>(
        self,
        data: &[u8],
        number: impl Fn([u8; N]) -> f64,
    ) -> Result<(), LoadError> {
        let (numbers, _) = data.as_chunks::<N>();
        for (index, (to, bytes)) in self.values.iter_mut().zip(numbers).enumerate() {
            let value = number(*bytes);
            *to = value as f32;
            if !to.is_finite() {
                return Err(LoadError::Number { name: self.name.to_owned(), index, value });
            }
        }
        Ok(())
    }
}

fn describe(view: Option<&TensorView<'_>>) -> String {
    match view {
        None => "nothing".to_owned(),
        Some(view) => format!("{} {:?}", view.dtype(), view.shape()),
    }
}

fn wrong(name: &str, expected: String, found: String) -> LoadError {
    LoadError::Tensor { name: name.to_owned(), expected, found }
}
