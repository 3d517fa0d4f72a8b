//! State dicts as files, whole and spoilt.

use std::collections::BTreeMap;

use lockstep_api::ModelSpec;
use lockstep_models::{LoadError, Model, NamedTensor, Report, TensorValues};
use safetensors::{
    Dtype,
    tensor::{TensorView, serialize},
};

/// A file under construction.
#[derive(Clone)]
pub(crate) struct Tensors(pub(crate) BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    pub(crate) fn of(model: &Model, weights: &[f32], buffers: &[f32]) -> Self {
        let entry = |tensor: NamedTensor<'_>| {
            let (dtype, data) = match tensor.values {
                TensorValues::F32(values) => {
                    (Dtype::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect())
                }
                TensorValues::I64(value) => (Dtype::I64, value.to_le_bytes().to_vec()),
            };
            (tensor.name.to_owned(), (dtype, tensor.shape.to_vec(), data))
        };
        Self(model.named_tensors(weights, buffers).map(entry).collect())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let views = self.0.iter().map(|(name, (dtype, shape, data))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        serialize(views, None).unwrap()
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let tensor = self.0.remove(from).unwrap();
        self.0.insert(to.to_owned(), tensor);
    }
}

pub(crate) struct Case {
    pub(crate) model: Model,
    pub(crate) weights: Vec<f32>,
    pub(crate) buffers: Vec<f32>,
    pub(crate) tensors: Tensors,
}

pub(crate) fn case(spec: &ModelSpec) -> Case {
    let model = Model::new(spec).unwrap();
    let weights = model.initial_weights(3);
    let mut buffers = model.initial_buffers();
    for (index, value) in buffers.iter_mut().enumerate() {
        *value = index as f32;
    }
    let tensors = Tensors::of(&model, &weights, &buffers);
    Case { model, weights, buffers, tensors }
}

impl Case {
    /// Into other numbers; they must stay as they are when the file is refused.
    pub(crate) fn load(
        &self,
        bytes: &[u8],
        strict: bool,
    ) -> Result<(Vec<f32>, Vec<f32>, Report), LoadError> {
        let (mut weights, mut buffers) =
            (self.model.initial_weights(4), self.model.initial_buffers());
        let before = (weights.clone(), buffers.clone());
        let loaded = self.model.load_weights(&mut weights, &mut buffers, bytes, strict);
        if loaded.is_err() {
            assert_eq!((&weights, &buffers), (&before.0, &before.1), "half loaded");
        }
        loaded.map(|report| (weights, buffers, report))
    }

    pub(crate) fn refusal(&self, bytes: &[u8], strict: bool) -> String {
        self.load(bytes, strict).unwrap_err().to_string()
    }

    pub(crate) fn check_loads(&self, tensors: &Tensors) {
        let (weights, buffers, _) = self.load(&tensors.bytes(), true).unwrap();
        assert_eq!((weights, buffers), (self.weights.clone(), self.buffers.clone()));
    }
}
