//! Files of weights that are refused, by the name of the tensor at fault.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::files::case;
use lockstep_models::LoadError;
use safetensors::Dtype;
use serde_json::{Value, json};

const GPT2: &[u8] = include_bytes!("golden/gpt2.safetensors");

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
    assert_eq!(
        mlp.refusal(&tensors.bytes(), true),
        "tensor `extra`: expected nothing, found F32 [1]"
    );
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
        let expected =
            format!("tensor `layers.1.bias`: element 2 is {told}, expected a finite f32");
        assert_eq!(mlp.refusal(&tensors.bytes(), false), expected);
    }
    let mut tensors = mlp.tensors.clone();
    let huge = [0.0, 1e300, 0.0, 0.0].iter().flat_map(|x: &f64| x.to_le_bytes()).collect();
    tensors.0.insert("layers.2.bias".to_owned(), (Dtype::F64, vec![4], huge));
    assert!(
        mlp.refusal(&tensors.bytes(), false).starts_with("tensor `layers.2.bias`: element 1 is 1")
    );
}

/// The file with its header changed as text, the length made to fit.
fn with_header(bytes: &[u8], change: impl Fn(&mut Value)) -> Vec<u8> {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let text = serde_json::to_vec(&header).unwrap();
    [&(text.len() as u64).to_le_bytes()[..], &text, &bytes[8 + length..]].concat()
}

type Change<'a> = Box<dyn Fn(&mut Value) + 'a>;

#[test]
fn lying_headers_are_refused_with_the_name_of_the_tensor() {
    let gpt2 = case(&common::gpt2(true));
    let offsets = |header: &mut Value, name: &str, change: &dyn Fn(u64, u64) -> (u64, u64)| {
        let entry = &mut header[name]["data_offsets"];
        let (begin, end) = change(entry[0].as_u64().unwrap(), entry[1].as_u64().unwrap());
        *entry = json!([begin, end]);
    };
    let name = "transformer.h.0.ln_1.bias";
    let cases: [(&str, Change<'_>); 6] = [
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
    for bytes in
        [&[][..], &[0; 7], &[0xff; 64], b"PK\x03\x04 a zip, as torch.save writes it", &longer]
    {
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
