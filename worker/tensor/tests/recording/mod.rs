//! Reads what PyTorch recorded.

use std::collections::HashMap;

use safetensors::{Dtype, SafeTensors};

/// A recording: floats with their shapes, as f64; integers likewise.
pub(crate) struct Recording {
    pub(crate) floats: HashMap<String, (Vec<usize>, Vec<f64>)>,
    pub(crate) ints: HashMap<String, (Vec<usize>, Vec<i64>)>,
}

impl Recording {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let file = SafeTensors::deserialize(bytes).unwrap();
        let mut recording = Self { floats: HashMap::new(), ints: HashMap::new() };
        for (name, view) in file.tensors() {
            let (shape, data) = (view.shape().to_vec(), view.data());
            let floats = match view.dtype() {
                Dtype::F32 => numbers(data, |b| f64::from(f32::from_le_bytes(b))),
                Dtype::F64 => numbers(data, f64::from_le_bytes),
                Dtype::I64 => {
                    recording.ints.insert(name, (shape, numbers(data, i64::from_le_bytes)));
                    continue;
                }
                other => panic!("{name} is {other:?}"),
            };
            recording.floats.insert(name, (shape, floats));
        }
        recording
    }

    pub(crate) fn shape(&self, name: &str) -> &[usize] {
        &self.floats.get(name).unwrap_or_else(|| panic!("no {name}")).0
    }

    pub(crate) fn values(&self, name: &str) -> &[f64] {
        &self.floats.get(name).unwrap_or_else(|| panic!("no {name}")).1
    }
}

fn numbers<const N: usize, V>(data: &[u8], value: impl Fn([u8; N]) -> V) -> Vec<V> {
    data.chunks_exact(N).map(|bytes| value(bytes.try_into().unwrap())).collect()
}
