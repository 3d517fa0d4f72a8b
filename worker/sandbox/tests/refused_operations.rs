//! Operations that do not fit: each is refused while the loss is recorded, in words that name it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::operations::{Case, Component, case};
use lockstep_sandbox::GuestError;
use serde_json::{Value as Json, json};

/// What is refused computes nothing.
fn of(config: Json) -> Case {
    case(config, |_, _| Vec::new())
}

fn refused(component: &Component, case: &Case, expected: &str) {
    let error = component.build(case).unwrap_err();
    assert!(matches!(error, GuestError::Operation { .. }), "{}: {error:?}", case.config);
    assert_eq!(error.to_string(), format!("loss.build: {expected}"), "{}", case.config);
}

#[test]
fn settings_that_do_not_fit_are_refused_by_name() {
    let component = Component::new();
    let refused = |case: &Case, expected: &str| refused(&component, case, expected);
    for (op, numbers, rule) in [
        ("scale", ["NaN", ""], "the factor must be finite"),
        ("add_scalar", ["inf", ""], "the term must be finite"),
        ("pow", ["NaN", ""], "the exponent must be finite"),
        ("pow", ["-inf", ""], "the exponent must be finite"),
        ("clamp", ["1", "0.5"], "min must be at most max"),
        ("clamp", ["NaN", "1"], "min must be at most max"),
    ] {
        let config = json!({"op": op, "numbers": numbers});
        refused(&of(config), &format!("{op} of f32[2, 3]: {rule}"));
    }
    for smoothing in ["-0.1", "1.5", "NaN"] {
        let config = json!({"op": "cross_entropy", "numbers": [smoothing]});
        let rule = "label_smoothing must be in 0..=1";
        refused(&of(config), &format!("cross_entropy of f32[2, 3], i64[2]: {rule}"));
    }
    let no_axis = "x has no such axis";
    let once = "each axis of x must be named once";
    let ends = "the slice must end within the axis";
    for (op, axes, rule) in [
        ("sum_axes", &[2][..], no_axis),
        ("sum_axes", &[u32::MAX], no_axis),
        ("sum_axes", &[0, 0], "an axis can be reduced once only"),
        ("mean_axes", &[], "there must be an axis to reduce"),
        ("max_axes", &[3], no_axis),
        ("permute", &[0], once),
        ("permute", &[1, 1], once),
        ("permute", &[0, 2], once),
        ("slice", &[2, 0, 1], no_axis),
        ("slice", &[1, 2, 2], ends),
        ("slice", &[1, u32::MAX, u32::MAX], ends),
    ] {
        let config = json!({"op": op, "axes": axes});
        refused(&of(config), &format!("{op} of f32[2, 3]: {rule}"));
    }
    for op in ["sum_axes", "mean_axes", "max_axes", "permute", "reshape", "constant"] {
        let config = json!({"op": op, "axes": vec![1; 9]});
        refused(&of(config), &format!("{op}: 9 axes are given, there are at most 8"));
    }
    for count in [0, 1, 9] {
        let config = json!({"op": "concat_copies", "axes": [0, count]});
        refused(&of(config), &format!("concat takes 2 to 8 inputs, {count} given"));
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_by_name() {
    let component = Component::new();
    let refused = |case: &Case, expected: &str| refused(&component, case, expected);
    for op in ["mse_loss", "bce_with_logits", "kl_div"] {
        let case = Case { t: &[3], ..of(json!({"op": op})) };
        refused(&case, &format!("{op} of f32[2, 3], f32[3]: the shapes must be equal"));
    }
    for op in ["mean_axes", "max_axes"] {
        let case = Case { x: &[0, 3], ..of(json!({"op": op, "axes": [0]})) };
        refused(&case, &format!("{op} of f32[0, 3]: the reduced axes must have an element"));
    }
    let (rows, one_shape) = ("x and the target must have as many rows", "must be of one shape");
    let axes = "x and the index must have equally many axes";
    for (config, index, expected) in [
        (json!({"op": "cross_entropy", "numbers": ["0"]}), &[3][..], rows.to_owned()),
        (json!({"op": "gather_axis", "axes": [2]}), &[2, 3], "x has no such axis".to_owned()),
        (json!({"op": "gather_axis", "axes": [1]}), &[2], axes.to_owned()),
        (
            json!({"op": "gather_axis", "axes": [1]}),
            &[3, 1],
            "the index must not be longer than x along the other axes".to_owned(),
        ),
        (json!({"op": "scatter_add", "axes": [2, 4]}), &[2, 3], "x has no such axis".to_owned()),
        (
            json!({"op": "scatter_add", "axes": [1, 4]}),
            &[2],
            format!("x and the index {one_shape}"),
        ),
    ] {
        let op = config["op"].as_str().unwrap().to_owned();
        let case = Case { index: (index, &[]), ..of(config) };
        refused(&case, &format!("{op} of f32[2, 3], i64{index:?}: {expected}"));
    }
    let of_three =
        format!("where of i64[2], f32[2, 3], f32[2, 3]: the condition, a and b {one_shape}");
    refused(&of(json!({"op": "where"})), &of_three);
    let case = Case { t: &[3, 3], ..of(json!({"op": "concat", "axes": [1]})) };
    let expected = "concat of f32[2, 3], f32[3, 3]: the other axes must be equally long";
    refused(&case, expected);
    let case = of(json!({"op": "concat", "axes": [2]}));
    refused(&case, "concat of f32[2, 3], f32[2, 3]: the inputs have no such axis");
    let case = Case { x: &[6], ..of(json!({"op": "transpose"})) };
    refused(&case, "permute of f32[6]: each axis of x must be named once");
}
