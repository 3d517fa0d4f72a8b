//! Initial weights: how far they spread, and that a seed decides them.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use lockstep_models::Model;
use serde_json::json;

fn deviation(model: &Model, weights: &[f32], name: &str) -> f64 {
    let param = model.layout().param(model.layout().id(name).unwrap()).unwrap();
    let values = &weights[param.range.clone()];
    (values.iter().map(|x| f64::from(x * x)).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn initial_weights_have_the_deviations_of_the_libraries() {
    let check = |spec: serde_json::Value, expected: &[(&str, f64)]| {
        let model = Model::new(&common::spec(spec)).unwrap();
        let weights = model.initial_weights(5);
        assert_eq!(weights, model.initial_weights(5));
        for (name, expected) in expected {
            let found = deviation(&model, &weights, name);
            // Thousands of draws each: their deviation is known to a few percent.
            assert!(
                (found - expected).abs() <= 0.05 * expected,
                "{name}: {found}, expected {expected}"
            );
        }
    };
    let gpt2 = json!({ "arch": "gpt2", "vocab_size": 100, "n_positions": 50, "n_embd": 64, "n_layer": 8, "n_head": 2 });
    check(
        gpt2,
        &[
            ("transformer.wte.weight", 0.02),
            ("transformer.wpe.weight", 0.02),
            ("transformer.h.3.attn.c_attn.weight", 0.02),
            ("transformer.h.3.attn.c_proj.weight", 0.005),
            ("transformer.h.7.mlp.c_proj.weight", 0.005),
            ("transformer.h.7.mlp.c_fc.bias", 0.0),
            ("transformer.ln_f.weight", 1.0),
        ],
    );
    let resnet = json!({ "arch": "resnet18", "input": [3, 32, 32], "classes": 100 });
    check(
        resnet,
        &[
            ("conv1.weight", (2.0_f64 / (64.0 * 49.0)).sqrt()),
            ("layer2.0.downsample.0.weight", (2.0_f64 / 128.0).sqrt()),
            ("layer4.1.conv2.weight", (2.0_f64 / (512.0 * 9.0)).sqrt()),
            ("layer4.1.bn2.weight", 1.0),
            ("fc.weight", 1.0 / 512_f64.sqrt() / 3_f64.sqrt()),
        ],
    );
    let vit = json!({ "arch": "vit", "image_size": 32, "patch_size": 4, "hidden_dim": 64, "num_layers": 2,
        "num_heads": 2, "mlp_dim": 128, "classes": 10 });
    let block = "encoder.layers.encoder_layer_1";
    check(
        vit,
        &[
            ("conv_proj.weight", 1.0 / 48_f64.sqrt()),
            ("encoder.pos_embedding", 0.02),
            ("class_token", 0.0),
            ("heads.head.weight", 0.0),
            (&format!("{block}.self_attention.in_proj_weight"), (2.0_f64 / 256.0).sqrt()),
            (&format!("{block}.self_attention.out_proj.weight"), 1.0 / 8.0 / 3_f64.sqrt()),
            (&format!("{block}.mlp.0.weight"), (2.0_f64 / 192.0).sqrt()),
        ],
    );
    let model = Model::new(&common::bert()).unwrap();
    let weights = model.initial_weights(1);
    let words = model.layout().id("bert.embeddings.word_embeddings.weight").unwrap();
    let range = model.layout().param(words).unwrap().range.clone();
    let words = &weights[range];
    assert!(words[..16].iter().all(|x| *x == 0.0) && words[16..].iter().all(|x| *x != 0.0));
}
