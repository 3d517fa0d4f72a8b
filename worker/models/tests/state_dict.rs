//! Names and shapes of whole state dicts, and files that load.

mod common;

use std::collections::{BTreeMap, HashMap};

use common::files::{Tensors, case};
use lockstep_models::Model;
use safetensors::Dtype;
use serde_json::{Value, json};

const NAMES: &str = include_str!("golden/names.json");

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
fn what_trains_the_model_is_passed_over_in_a_checkpoint() {
    for spec in [common::layers(), common::gpt2(true)] {
        let case = case(&spec);
        let mut tensors = case.tensors.clone();
        for (name, tensor) in &case.tensors.0 {
            for prefix in ["optimizer.m.", "optimizer.v.", "ema."] {
                tensors.0.insert(format!("{prefix}{name}"), tensor.clone());
            }
        }
        case.check_loads(&tensors);
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
