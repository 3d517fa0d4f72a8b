use serde_json::json;

use super::{SGD, job, model, model_errors, written};
use crate::{ArchSpec, LayerSpec};

const CNN: &str = r#"
arch = "layers"
input = [1, 28, 28]
layers = [
    { conv2d = { out = 32, kernel = 3, padding = 1, bias = false } }, "batch_norm", "relu",
    { conv2d = { out = 64, kernel = 3, stride = 2, padding = 1, groups = 2 } }, { batch_norm = { momentum = 0.5 } }, "gelu_new",
    { max_pool2d = { kernel = 2 } }, { avg_pool2d = { kernel = 3, stride = 2, padding = 1 } },
    { dropout = { p = 0.1 } }, { adaptive_avg_pool2d = { size = 2 } }, "flatten", "layer_norm",
    { linear = { out = 10 } }, "rms_norm", "tanh", "silu", "gelu", "sigmoid",
]"#;

fn layers(text: &str) -> crate::LayersSpec {
    match model(text).arch {
        ArchSpec::Layers(it) => it,
        other => panic!("{other:?}"),
    }
}

/// The reference list with one layer in place of the second convolution.
fn with(layer: &str) -> String {
    let start = CNN.find("{ conv2d = { out = 64").unwrap();
    let end = start + CNN[start..].find("} }").unwrap() + 3;
    format!("{}{layer}{}", &CNN[..start], &CNN[end..])
}

#[test]
fn shapes_and_parameters_are_those_of_a_sequential() {
    let spec = layers(CNN);
    let shapes = spec.shapes().unwrap();
    let found: Vec<&[u64]> = [0, 1, 4, 7, 8, 10, 11, 13].map(|i| shapes[i].as_slice()).to_vec();
    assert_eq!(
        found,
        [
            &[1, 28, 28][..],
            &[32, 28, 28],
            &[64, 14, 14],
            &[64, 7, 7],
            &[64, 4, 4],
            &[64, 2, 2],
            &[256],
            &[10],
        ]
    );
    let convolutions = 32 * 9 + (64 * 16 * 9 + 64);
    let norms = 2 * 32 + 2 * 64 + 2 * 256 + 10;
    let count = convolutions + norms + (256 * 10 + 10);
    assert_eq!(ArchSpec::Layers(spec).parameter_count(), count);
}

#[test]
fn dilation_and_stride_follow_the_usual_formula() {
    let text = with("{ conv2d = { out = 4, kernel = 3, stride = 3, dilation = 2, padding = 1 } }");
    // floor((28 + 2 - 5) / 3) + 1
    assert_eq!(layers(&text).shapes().unwrap()[4], [4, 9, 9]);
}

#[test]
fn a_bare_name_stands_for_the_layer_with_its_defaults() {
    let value = written(&job(CNN, SGD, "").unwrap());
    let list = &value["model"]["layers"];
    assert_eq!(
        list[0],
        json!({ "conv2d": { "out": 32, "kernel": 3, "stride": 1, "padding": 1, "dilation": 1, "groups": 1, "bias": false } })
    );
    assert_eq!(list[1], json!({ "batch_norm": { "eps": 1e-5, "momentum": 0.1 } }));
    assert_eq!(list[2], json!("relu"));
    assert_eq!(list[6], json!({ "max_pool2d": { "kernel": 2, "stride": null, "padding": 0 } }));
    assert_eq!(list[11], json!({ "layer_norm": { "eps": 1e-5 } }));
    assert_eq!(list[12], json!({ "linear": { "out": 10, "bias": true } }));
    assert_eq!(list[13], json!({ "rms_norm": { "eps": f32::EPSILON } }));
    let dropout = layers(&with("\"dropout\"")).layers[3].clone();
    assert!(matches!(dropout, LayerSpec::Dropout(it) if it.p == 0.5));
}

#[test]
fn what_is_no_layer_is_refused_with_its_place() {
    let error = |layer: &str| model_errors(&with(layer)).remove(0);
    assert!(error("\"reluu\"").starts_with("model.layers[3]: unknown variant `reluu`"));
    assert!(error("\"reluu\"").ends_with("did you mean `relu`?"));
    assert_eq!(error("\"conv2d\""), "model.layers[3]: missing field `out`");
    assert_eq!(
        error("{ conv2d = { out = -1, kernel = 3 } }"),
        "model.layers[3].conv2d.out: invalid value: integer `-1`, expected a whole number, 0 to 4294967295"
    );
    assert!(
        error("{ conv2d = { out = 1, kernel = 3, strides = 2 } }")
            .contains("did you mean `stride`?")
    );
    assert_eq!(
        error("3"),
        "model.layers[3]: invalid type: integer `3`, expected a layer's name, or a table with one layer"
    );
    // Two layers in one table would leave their order open.
    assert!(error("{ linear = { out = 2 }, dropout = {} }").starts_with("model.layers[3]"));
    assert!(error("{}").starts_with("model.layers[3]"));
}

#[test]
fn a_layer_that_does_not_fit_its_input_is_named() {
    let errors = |layer: &str| model_errors(&with(layer));
    assert_eq!(
        errors("{ conv2d = { out = 4, kernel = 31, padding = 1 } }"),
        ["model.layers[3].conv2d.kernel: expected a window of at most 30 pixels \
          (the input's 28 and the padding), got one of 31"]
    );
    assert_eq!(
        errors("{ conv2d = { out = 6, kernel = 1, groups = 3 } }"),
        ["model.layers[3].conv2d.groups: expected a divisor of the input's 32 channels, got 3"]
    );
    assert_eq!(
        errors("{ conv2d = { out = 5, kernel = 1, groups = 2 } }"),
        ["model.layers[3].conv2d.out: expected a multiple of groups = 2, got 5"]
    );
    assert_eq!(
        errors("{ max_pool2d = { kernel = 2, padding = 2 } }"),
        ["model.layers[3].max_pool2d.padding: expected at most half of kernel = 2, got 2"]
    );
    assert_eq!(
        errors("\"flatten\""),
        ["model.layers[6].max_pool2d: expected an input [channels, height, width], got [25088]"]
    );
}

#[test]
fn settings_of_layers_have_ranges() {
    let errors = |layer: &str| model_errors(&with(layer));
    assert_eq!(
        errors(
            "{ conv2d = { out = 0, kernel = 0, stride = 0, dilation = 0, groups = 0, padding = 2000 } }"
        ),
        [
            "model.layers[3].conv2d.out: expected 1 to 1048576, got 0",
            "model.layers[3].conv2d.groups: expected 1 to 1048576, got 0",
            "model.layers[3].conv2d.kernel: expected 1 to 1024, got 0",
            "model.layers[3].conv2d.stride: expected 1 to 1024, got 0",
            "model.layers[3].conv2d.padding: expected 0 to 1024, got 2000",
            "model.layers[3].conv2d.dilation: expected 1 to 1024, got 0",
        ]
    );
    assert_eq!(
        errors("{ avg_pool2d = { kernel = 0 } }"),
        ["model.layers[3].avg_pool2d.kernel: expected 1 to 1024, got 0"]
    );
    assert_eq!(
        errors("{ max_pool2d = { kernel = 2, stride = 0 } }"),
        ["model.layers[3].max_pool2d.stride: expected 1 to 1024, got 0"]
    );
    assert_eq!(
        errors("{ dropout = { p = 1 } }"),
        ["model.layers[3].dropout.p: expected 0 or more and less than 1, got 1"]
    );
    assert_eq!(
        errors("{ batch_norm = { eps = 0, momentum = 1.5 } }"),
        [
            "model.layers[3].batch_norm.eps: expected above 0 to 1, got 0",
            "model.layers[3].batch_norm.momentum: expected 0 to 1, got 1.5",
        ]
    );
    assert_eq!(
        errors("{ adaptive_avg_pool2d = { size = 0 } }"),
        ["model.layers[3].adaptive_avg_pool2d.size: expected 1 to 1024, got 0"]
    );
}

#[test]
fn the_list_and_its_input_have_limits() {
    let errors = model_errors("arch = \"layers\"\ninput = []\nlayers = []");
    assert_eq!(
        errors,
        [
            "model.input: expected 1 to 3 axes, got 0",
            "model.layers: expected 1 to 512 layers, got 0"
        ]
    );
    let errors = model_errors("arch = \"layers\"\ninput = [2, 0]\nlayers = [\"relu\"]");
    assert_eq!(errors, ["model.input[1]: expected 1 to 1048576, got 0"]);
    let text = "arch = \"layers\"\ninput = [1, 65536, 65536]\nlayers = [{ conv2d = { out = 2, kernel = 1 } }]";
    assert_eq!(
        model_errors(text),
        [
            "model.layers[0]: expected at most 4294967296 numbers of a sample, got 8589934592: [2, 65536, 65536]"
        ]
    );
}
