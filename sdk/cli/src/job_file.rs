//! From a job file to a checked spec: overrides applied, local paths found, every refusal with its field.

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{FieldError, JobSpec, parse};
use serde_json::{Map, Value};

use crate::args::SubmitArgs;
use crate::failure::Failure;

/// Longest job file that is read.
const FILE_CAP_BYTES: u64 = 4 << 20;

/// A job as its owner wrote it. Fields that name local files still hold their paths.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobFile {
    pub(crate) spec: JobSpec,
    pub(crate) uploads: Vec<LocalFile>,
}

/// A field that names something on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalFile {
    pub(crate) field: Field,
    pub(crate) path: Utf8PathBuf,
}

/// The fields that may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Loader,
    Loss,
    Train,
    Eval,
    InitFrom,
}

impl Field {
    pub(crate) const ALL: [Self; 5] =
        [Self::Loader, Self::Loss, Self::Train, Self::Eval, Self::InitFrom];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Loader => "loader.component",
            Self::Loss => "loss.component",
            Self::Train => "data.train",
            Self::Eval => "data.eval",
            Self::InitFrom => "model.init_from",
        }
    }

    /// Datasets may be folders; components and weights are files.
    pub(crate) fn is_dataset(self) -> bool {
        match self {
            Self::Loader | Self::Loss | Self::InitFrom => false,
            Self::Train | Self::Eval => true,
        }
    }

    fn get(self, spec: &JobSpec) -> Option<&str> {
        match self {
            Self::Loader => Some(&spec.loader.component),
            Self::Loss => Some(&spec.loss.component),
            Self::Train => Some(&spec.data.train),
            Self::Eval => spec.data.eval.as_deref(),
            Self::InitFrom => spec.model.init_from.as_deref(),
        }
    }

    pub(crate) fn set(self, spec: &mut JobSpec, value: String) {
        match self {
            Self::Loader => spec.loader.component = value,
            Self::Loss => spec.loss.component = value,
            Self::Train => spec.data.train = value,
            Self::Eval => spec.data.eval = Some(value),
            Self::InitFrom => spec.model.init_from = Some(value),
        }
    }
}

/// Reads and checks the job of `args`.
pub(crate) fn read(args: &SubmitArgs) -> anyhow::Result<JobFile> {
    let path = &args.file;
    let length = std::fs::metadata(path).map_err(|error| usage(&format!("{path}: {error}")))?.len();
    if FILE_CAP_BYTES < length {
        return Err(usage(&format!(
            "{path}: expected at most {FILE_CAP_BYTES} bytes, got {length}"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| usage(&format!("{path}: {error}")))?;
    let mut value = parse_text(path, &text)?;
    for (field, setting) in overrides(args)? {
        set(&mut value, &field, setting)?;
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_str().is_empty() => folder,
        _ => Utf8Path::new("."),
    };
    from_value(value, folder).map_err(|errors| refuse(path, &errors))
}

fn usage(message: &str) -> anyhow::Error {
    Failure::Usage(message.to_owned()).into()
}

fn refuse(path: &Utf8Path, errors: &[FieldError]) -> anyhow::Error {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match lines.as_slice() {
        [line] => usage(&format!("{path}: {line}")),
        lines => usage(&format!("{path}:\n  {}", lines.join("\n  "))),
    }
}

fn parse_text(path: &Utf8Path, text: &str) -> anyhow::Result<Value> {
    if path.extension() == Some("json") {
        return serde_json::from_str(text).map_err(|error| usage(&format!("{path}: {error}")));
    }
    let table: toml::Table = toml::from_str(text)
        .map_err(|error| usage(&format!("{path}: {}", error.to_string().trim_end())))?;
    if let Some(field) = table.iter().find_map(|(name, value)| not_finite(name, value)) {
        return Err(usage(&format!("{path}: {field}: expected a finite number")));
    }
    serde_json::to_value(table).with_context(|| format!("{path} cannot be written as JSON"))
}

/// Every override in the order of its strength: named flags, then `--set` from left to right.
fn overrides(args: &SubmitArgs) -> anyhow::Result<Vec<(String, Value)>> {
    let mut all = Vec::new();
    if let Some(ranks) = args.ranks {
        all.push(("gang.ranks".to_owned(), serde_json::to_value(ranks)?));
    }
    all.extend(args.name.clone().map(|name| ("name".to_owned(), Value::from(name))));
    all.extend(args.priority.map(|priority| ("priority".to_owned(), Value::from(priority))));
    for setting in &args.set {
        let (field, value) = setting
            .split_once('=')
            .filter(|(field, _)| !field.trim().is_empty())
            .ok_or_else(|| usage(&format!("--set {setting}: expected FIELD=VALUE")))?;
        all.push((field.trim().to_owned(), read_value(value)));
    }
    Ok(all)
}

/// As TOML reads it (`9`, `1e-3`, `true`, `[1, 2]`, `{ a = 1 }`, `"text"`), else the text itself.
fn read_value(text: &str) -> Value {
    let parsed = toml::from_str::<toml::Table>(&format!("value = {text}")).ok();
    // More than one key: the text held a line break and another assignment.
    let value = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    match value {
        Some(toml::Value::Datetime(_)) | None => Value::from(text),
        Some(value) if not_finite("", &value).is_some() => Value::from(text),
        Some(value) => serde_json::to_value(value).unwrap_or_else(|_| Value::from(text)),
    }
}

/// The first field that is `nan` or `inf`. JSON has neither: it would become `null`, as if the field were absent.
fn not_finite(path: &str, value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::Float(number) if !number.is_finite() => Some(path.to_owned()),
        toml::Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| not_finite(&format!("{path}[{index}]"), item)),
        toml::Value::Table(fields) => {
            fields.iter().find_map(|(name, field)| not_finite(&format!("{path}.{name}"), field))
        }
        toml::Value::Float(_)
        | toml::Value::Integer(_)
        | toml::Value::Boolean(_)
        | toml::Value::String(_)
        | toml::Value::Datetime(_) => None,
    }
}

/// Sets one field, `a.b[0].c` or `a.b.0.c`, making tables on the way.
fn set(root: &mut Value, field: &str, setting: Value) -> anyhow::Result<()> {
    let plain = field.replace('[', ".").replace(']', "");
    let mut place = root;
    let mut walked = String::new();
    for part in plain.split('.') {
        let here = walked.clone();
        walked = format!("{walked}.{part}");
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        place = match place {
            Value::Object(map) => map.entry(part).or_insert(Value::Null),
            Value::Array(items) => {
                let count = items.len();
                part.parse::<usize>().ok().and_then(|index| items.get_mut(index)).ok_or_else(
                    || {
                        usage(&format!(
                            "--set {field}: expected an index below {count} at {part:?}"
                        ))
                    },
                )?
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                let here = here.trim_start_matches('.');
                // The one field that may be a table as well.
                let hint = match here {
                    "gang.ranks" => ": --set 'gang.ranks={ min = 1, max = 4 }' takes its place",
                    _ => "",
                };
                return Err(usage(&format!("--set {field}: {here} has no fields{hint}")));
            }
        };
    }
    *place = setting;
    Ok(())
}

/// Checks everything that needs no server; finds what has to be uploaded.
fn from_value(value: Value, folder: &Utf8Path) -> Result<JobFile, Vec<FieldError>> {
    let spec: JobSpec = parse(value).map_err(|error| vec![error])?;
    let mut uploads = Vec::new();
    let mut errors = Vec::new();
    for field in Field::ALL {
        let Some(text) = field.get(&spec).filter(|text| is_local(text)) else { continue };
        let path = folder.join(text);
        let fits = if field.is_dataset() { path.exists() } else { path.is_file() };
        if !fits {
            let wanted = if field.is_dataset() { "a file or folder" } else { "a file" };
            let message = format!("expected {wanted}, found none at {path}");
            errors.push(FieldError::new(field.path(), message));
        }
        uploads.push(LocalFile { field, path });
    }
    for mut error in spec.check() {
        let local = uploads.iter().any(|upload| upload.field.path() == error.field);
        if local {
            // Still a path; it gets its digest by the upload.
            continue;
        }
        if Field::ALL.iter().any(|field| field.path() == error.field) {
            error.message.push_str("; a local file's path begins with ./, ../ or /");
        }
        errors.push(error);
    }
    if errors.is_empty() { Ok(JobFile { spec, uploads }) } else { Err(errors) }
}

fn is_local(text: &str) -> bool {
    ["./", "../", "/"].iter().any(|start| text.starts_with(start))
}

#[cfg(test)]
mod tests;
