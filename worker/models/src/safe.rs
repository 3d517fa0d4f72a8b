//! Reading a `safetensors` file that nobody vouches for.
//!
//! The format's own crate refuses what does not hold together, but does not always say which tensor; then the header is
//! read once more, tensor by tensor in the order of their bytes, to find the first that is wrong.

use safetensors::{SafeTensorError, SafeTensors, tensor::Dtype};
use serde_json::Value;

use crate::load::LoadError;

/// Bytes before the header: its length.
const PREFIX: usize = 8;

/// The file's tensors; their ranges follow one another without gap or overlap and fill the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<SafeTensors<'_>, LoadError> {
    SafeTensors::deserialize(bytes).map_err(|source| diagnose(bytes, source))
}

fn diagnose(bytes: &[u8], source: SafeTensorError) -> LoadError {
    let Some((header, data_len)) = header(bytes) else { return LoadError::Format(source) };
    let mut entries: Vec<Entry<'_>> =
        header.iter().filter(|(name, _)| *name != "__metadata__").map(Entry::new).collect();
    entries.sort_by_key(|entry| entry.range);
    let mut end = 0;
    for entry in entries {
        match entry.check(end, data_len) {
            Ok(next) => end = next,
            Err((expected, found)) => {
                return LoadError::Tensor { name: entry.name.to_owned(), expected, found };
            }
        }
    }
    LoadError::Format(source)
}

/// The header's table and the number of bytes behind it.
fn header(bytes: &[u8]) -> Option<(serde_json::Map<String, Value>, u64)> {
    let length = u64::from_le_bytes(bytes.get(..PREFIX)?.try_into().ok()?);
    let rest = &bytes[PREFIX..];
    let text = rest.get(..usize::try_from(length).ok()?)?;
    match serde_json::from_slice(text).ok()? {
        Value::Object(table) => Some((table, rest.len() as u64 - length)),
        _ => None,
    }
}

/// A tensor as the header has it; `None` for what cannot be read.
struct Entry<'a> {
    name: &'a str,
    dtype: Option<Dtype>,
    shape: Option<Vec<u64>>,
    range: Option<[u64; 2]>,
}

impl<'a> Entry<'a> {
    fn new((name, value): (&'a String, &Value)) -> Self {
        let read = |field: &str| value.get(field).cloned().unwrap_or_default();
        Self {
            name,
            dtype: serde_json::from_value(read("dtype")).ok(),
            shape: serde_json::from_value(read("shape")).ok(),
            range: serde_json::from_value(read("data_offsets")).ok(),
        }
    }

    /// Where the next tensor has to begin; or what was expected and what was found.
    fn check(&self, begin: u64, data_len: u64) -> Result<u64, (String, String)> {
        let lacks = |what: &str| Err((what.to_owned(), "none that can be read".to_owned()));
        let Some(dtype) = self.dtype else { return lacks("a dtype") };
        let Some(shape) = &self.shape else { return lacks("a shape") };
        let Some([first, end]) = self.range else { return lacks("two data offsets") };
        let found = format!("bytes {first} to {end} of {data_len}");
        if first != begin {
            return Err((format!("data that begins at byte {begin}"), found));
        }
        if end < first || data_len < end {
            return Err((format!("data that ends at byte {data_len} or before"), found));
        }
        let bits = shape
            .iter()
            .try_fold(dtype.bitsize() as u64, |product, length| product.checked_mul(*length));
        match bits {
            Some(bits) if bits == (end - first).saturating_mul(8) => Ok(end),
            Some(bits) => Err((format!("{} bytes for {dtype} {shape:?}", bits / 8), found)),
            None => Err(("a shape whose size can be counted".to_owned(), format!("{shape:?}"))),
        }
    }
}
