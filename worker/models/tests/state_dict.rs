//! Names and shapes of whole state dicts, files that load, and files that are refused.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use std::collections::{BTreeMap, HashMap};

use lockstep_api::ModelSpec;
use lockstep_models::{LoadError, Model, Report, TensorValues};
use safetensors::{
    Dtype,
    tensor::{TensorView, serialize},
};
use serde_json::{Value, json};

const NAMES: &str = include_str!("golden/names.json");
const GPT2: &[u8] = include_bytes!("golden/gpt2.safetensors");

fn published() -> [(&'static str, Value); 6] {
    let image = [3, 224, 224];
    [
        ("resnet18", json!({ "arch": "resnet18", "input": image, "classes": 1000 })),
        ("resnet34", json!({ "arch": "resnet34", "input": image, "classes": 1000 })),
        ("resnet50", json!({ "arch": "resnet50", "input": image, "classes": 1000 })),
        (
            "vit",
            json!({ "arch": "vit", "image_size": 224, "patch_size": 16, "hidden_dim": 768, "num_layers": 12,
                "num_heads": 12, "mlp_dim": 3072, "classes": 1000 }),
        ),
        (
            "gpt2",
            json!({ "arch": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
                "n_head": 12 }),
        ),
        (
            "bert",
            json!({ "arch": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12,
                "num_attention_heads": 12, "intermediate_size": 3072, "classes": 2 }),
        ),
    ]
}

#[test]
fn names_and_shapes_of_the_published_sizes_are_those_of_the_libraries() {
    let lists: HashMap<String, BTreeMap<String, Vec<usize>>> = serde_json::from_str(NAMES).unwrap();
    for (arch, settings) in published() {
        let spec = common::spec(settings);
        let model = Model::new(&spec).unwrap();
        let params = model.layout().params().iter().chain(model.buffers().params());
        let ours: BTreeMap<_, _> = params.map(|p| (p.name.clone(), p.shape.clone())).collect();
        let mut expected = lists[arch].clone();
        if arch == "gpt2" {
            assert_eq!(expected.remove("lm_head.weight").unwrap(), [50257, 768], "shared");
        }
        assert_eq!(ours, expected, "{arch}");
        assert_eq!(model.parameter_count() as u64, spec.arch.parameter_count(), "{arch}");
    }
}

/// A file under construction.
#[derive(Clone)]
struct Tensors(BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn of(model: &Model, weights: &[f32], buffers: &[f32]) -> Self {
        let entry = |tensor: lockstep_models::NamedTensor<'_>| {
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

    fn bytes(&self) -> Vec<u8> {
        let views = self.0.iter().map(|(name, (dtype, shape, data))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        serialize(views, None).unwrap()
    }

    fn rename(&mut self, from: &str, to: &str) {
        let tensor = self.0.remove(from).unwrap();
        self.0.insert(to.to_owned(), tensor);
    }
}

struct Case {
    model: Model,
    weights: Vec<f32>,
    buffers: Vec<f32>,
    tensors: Tensors,
}

fn case(spec: &ModelSpec) -> Case {
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
    fn load(&self, bytes: &[u8], strict: bool) -> Result<(Vec<f32>, Vec<f32>, Report), LoadError> {
        let (mut weights, mut buffers) = (self.model.initial_weights(4), self.model.initial_buffers());
        let before = (weights.clone(), buffers.clone());
        let loaded = self.model.load_weights(&mut weights, &mut buffers, bytes, strict);
        if loaded.is_err() {
            assert_eq!((&weights, &buffers), (&before.0, &before.1), "half loaded");
        }
        loaded.map(|report| (weights, buffers, report))
    }

    fn refusal(&self, bytes: &[u8], strict: bool) -> String {
        self.load(bytes, strict).unwrap_err().to_string()
    }

    fn check_loads(&self, tensors: &Tensors) {
        let (weights, buffers, _) = self.load(&tensors.bytes(), true).unwrap();
        assert_eq!((weights, buffers), (self.weights.clone(), self.buffers.clone()));
    }
}

#[test]
fn what_is_named_loads_back_bit_for_bit() {
    for spec in [common::mlp(), common::layers(), common::gpt2(true), common::gpt2(false)] {
        let case = case(&spec);
        case.check_loads(&case.tensors);
    }
    for spec in [common::bert(), common::vit()] {
        let case = case(&spec);
        case.check_loads(&case.tensors);
    }
}

#[test]
fn counters_are_scalars_of_i64_and_may_be_missing() {
    let mut case = case(&common::layers());
    let (dtype, shape, data) = &case.tensors.0["1.num_batches_tracked"];
    assert_eq!((*dtype, shape.len(), data.len()), (Dtype::I64, 0, 8));
    let mut tensors = case.tensors.clone();
    tensors.0.retain(|name, _| !name.ends_with("num_batches_tracked"));
    for param in case.model.buffers().params() {
        if param.name.ends_with("num_batches_tracked") {
            case.buffers[param.range.clone()].fill(0.0);
        }
    }
    case.check_loads(&tensors);
}

#[test]
fn names_of_older_and_of_headless_files_are_known() {
    let bert = case(&common::bert());
    let mut old = bert.tensors.clone();
    old.rename("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma");
    old.rename("bert.embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta");
    let ids = vec![0_u8; 12 * 8];
    old.0.insert("bert.embeddings.position_ids".to_owned(), (Dtype::I64, vec![1, 12], ids));
    bert.check_loads(&old);

    let vit = case(&common::vit());
    let mut old = vit.tensors.clone();
    let block = "encoder.layers.encoder_layer_0.mlp";
    old.rename(&format!("{block}.0.weight"), &format!("{block}.linear_1.weight"));
    old.rename(&format!("{block}.3.bias"), &format!("{block}.linear_2.bias"));
    vit.check_loads(&old);

    let gpt2 = case(&common::gpt2(true));
    let mut headless = Tensors(BTreeMap::new());
    for (name, tensor) in &gpt2.tensors.0 {
        headless.0.insert(name.strip_prefix("transformer.").unwrap().to_owned(), tensor.clone());
    }
    let mask = (Dtype::F32, vec![1, 1, 12, 12], vec![0_u8; 12 * 12 * 4]);
    headless.0.insert("h.0.attn.bias".to_owned(), mask);
    gpt2.check_loads(&headless);
}

#[test]
fn a_shared_head_may_be_in_the_file_if_it_is_the_embedding() {
    let gpt2 = case(&common::gpt2(true));
    let mut tensors = gpt2.tensors.clone();
    let mut head = tensors.0["transformer.wte.weight"].clone();
    tensors.0.insert("lm_head.weight".to_owned(), head.clone());
    gpt2.check_loads(&tensors);
    head.2[5] ^= 1;
    tensors.0.insert("lm_head.weight".to_owned(), head);
    assert_eq!(
        gpt2.refusal(&tensors.bytes(), false),
        "tensor `lm_head.weight`: expected the same numbers as in `transformer.wte.weight`, whose weights it \
         shares, found others"
    );
}

#[test]
fn other_kinds_of_floats_are_converted() {
    let mlp = case(&common::mlp());
    let range = mlp.model.layout().param(mlp.model.layout().id("layers.2.bias").unwrap()).unwrap();
    let range = range.range.clone();
    let as_f64: Vec<u8> = [0.5_f64, 1e-3, -2.0, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let cases = [
        (Dtype::F64, as_f64, [0.5_f32, 1e-3, -2.0, 0.0]),
        (Dtype::F16, vec![0x00, 0x38, 0x00, 0x3c, 0x00, 0xc0, 0, 0], [0.5, 1.0, -2.0, 0.0]),
        (Dtype::BF16, vec![0x00, 0x3f, 0x80, 0x3f, 0x00, 0xc0, 0, 0], [0.5, 1.0, -2.0, 0.0]),
    ];
    for (dtype, data, expected) in cases {
        let mut tensors = mlp.tensors.clone();
        tensors.0.insert("layers.2.bias".to_owned(), (dtype, vec![4], data));
        let (weights, ..) = mlp.load(&tensors.bytes(), true).unwrap();
        assert_eq!(weights[range.clone()], expected, "{dtype}");
    }
    let mut tensors = mlp.tensors.clone();
    tensors.0.insert("layers.2.bias".to_owned(), (Dtype::I32, vec![4], vec![0; 16]));
    assert_eq!(
        mlp.refusal(&tensors.bytes(), true),
        "tensor `layers.2.bias`: expected F32, F16, BF16 or F64, found I32 [4]"
    );
}

#[test]
fn missing_and_unexpected_tensors_are_refused_when_strict_and_told_otherwise() {
    let mlp = case(&common::mlp());
    let mut tensors = mlp.tensors.clone();
    tensors.rename("layers.1.weight", "layers.9.weight");
    assert_eq!(
        mlp.refusal(&tensors.bytes(), true),
        "tensor `layers.1.weight`: expected [6, 7], found nothing"
    );
    let (weights, _, report) = mlp.load(&tensors.bytes(), false).unwrap();
    assert_eq!(report.loaded, 5);
    assert_eq!(report.kept, ["layers.1.weight"]);
    assert_eq!(report.left_out, ["layers.9.weight"]);
    let layout = mlp.model.layout();
    let range = layout.param(layout.id("layers.1.weight").unwrap()).unwrap().range.clone();
    assert_eq!(weights[range.clone()], mlp.model.initial_weights(4)[range]);

    let mut tensors = mlp.tensors.clone();
    tensors.0.insert("extra".to_owned(), (Dtype::F32, vec![1], vec![0; 4]));
    assert_eq!(mlp.refusal(&tensors.bytes(), true), "tensor `extra`: expected nothing, found F32 [1]");
}

#[test]
fn wrong_shapes_and_numbers_that_are_none_are_refused_by_name_even_if_not_strict() {
    let mlp = case(&common::mlp());
    let mut tensors = mlp.tensors.clone();
    tensors.0.get_mut("layers.0.weight").unwrap().1 = vec![5, 7];
    assert_eq!(
        mlp.refusal(&tensors.bytes(), false),
        "tensor `layers.0.weight`: expected [7, 5], found F32 [5, 7]"
    );
    for (bad, told) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut tensors = mlp.tensors.clone();
        tensors.0.get_mut("layers.1.bias").unwrap().2[8..12].copy_from_slice(&bad.to_le_bytes());
        let expected = format!("tensor `layers.1.bias`: element 2 is {told}, expected a finite f32");
        assert_eq!(mlp.refusal(&tensors.bytes(), false), expected);
    }
    let mut tensors = mlp.tensors.clone();
    let huge = [0.0, 1e300, 0.0, 0.0].iter().flat_map(|x: &f64| x.to_le_bytes()).collect();
    tensors.0.insert("layers.2.bias".to_owned(), (Dtype::F64, vec![4], huge));
    assert!(mlp.refusal(&tensors.bytes(), false).starts_with("tensor `layers.2.bias`: element 1 is 1"));
}

/// The file with its header changed as text, the length made to fit.
fn with_header(bytes: &[u8], change: impl Fn(&mut Value)) -> Vec<u8> {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let text = serde_json::to_vec(&header).unwrap();
    [&(text.len() as u64).to_le_bytes()[..], &text, &bytes[8 + length..]].concat()
}

#[test]
fn lying_headers_are_refused_with_the_name_of_the_tensor() {
    let gpt2 = case(&common::gpt2(true));
    let offsets = |header: &mut Value, name: &str, change: &dyn Fn(u64, u64) -> (u64, u64)| {
        let entry = &mut header[name]["data_offsets"];
        let (begin, end) = change(entry[0].as_u64().unwrap(), entry[1].as_u64().unwrap());
        *entry = json!([begin, end]);
    };
    let name = "transformer.h.0.ln_1.bias";
    let cases: [(&str, Box<dyn Fn(&mut Value)>); 6] = [
        ("begins at byte", Box::new(|h| offsets(h, name, &|a, b| (a - 4, b)))),
        ("begins at byte", Box::new(|h| offsets(h, name, &|a, b| (a + 4, b)))),
        ("16 bytes", Box::new(|h| h[name]["shape"] = json!([4]))),
        ("size can be counted", Box::new(|h| h[name]["shape"] = json!([1_u64 << 40, 1_u64 << 40]))),
        ("a dtype", Box::new(|h| h[name]["dtype"] = json!("F33"))),
        ("two data offsets", Box::new(|h| h[name]["data_offsets"] = json!([-1, 4]))),
    ];
    for (told, change) in cases {
        let refusal = gpt2.refusal(&with_header(GPT2, change), false);
        assert!(refusal.contains(name) && refusal.contains(told), "{told}: {refusal}");
    }
    let last = with_header(GPT2, |header| {
        let table = header.as_object_mut().unwrap();
        let tensors = table.iter_mut().filter(|(name, _)| *name != "__metadata__");
        let last = tensors.max_by_key(|(_, entry)| entry["data_offsets"][1].as_u64());
        let entry = last.unwrap().1;
        entry["data_offsets"][1] = json!(entry["data_offsets"][1].as_u64().unwrap() + 64);
    });
    let refusal = gpt2.refusal(&last, false);
    assert!(refusal.contains("tensor `") && refusal.contains("or before"), "{refusal}");
    gpt2.load(GPT2, true).unwrap();
}

#[test]
fn short_files_and_files_of_another_format_are_refused() {
    let gpt2 = case(&common::gpt2(true));
    let cut = gpt2.refusal(&GPT2[..GPT2.len() - 10], false);
    assert!(cut.contains("tensor `") && cut.contains("or before"), "{cut}");
    let longer = [GPT2, &[0; 4]].concat();
    for bytes in [&[][..], &[0; 7], &[0xff; 64], b"PK\x03\x04 a zip, as torch.save writes it", &longer] {
        assert_eq!(gpt2.refusal(bytes, false), "not a safetensors file");
    }
    let lying_length = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    assert_eq!(gpt2.refusal(&lying_length, false), "not a safetensors file");
}

#[test]
fn two_names_of_one_tensor_are_refused() {
    let bert = case(&common::bert());
    let mut tensors = bert.tensors.clone();
    let twice = tensors.0["bert.embeddings.LayerNorm.weight"].clone();
    tensors.0.insert("bert.embeddings.LayerNorm.gamma".to_owned(), twice);
    assert!(bert.refusal(&tensors.bytes(), false).contains("is another name of it"));
}

#[test]
fn memory_of_another_model_is_refused() {
    let mlp = case(&common::mlp());
    let error = mlp.model.load_weights(&mut [0.0; 3], &mut [], &mlp.tensors.bytes(), true);
    assert!(matches!(error, Err(LoadError::Memory { given: 3, .. })), "{error:?}");
}
