use serde_json::json;

use super::{DIGEST, MLP, SGD, job, model, model_errors, written};
use crate::{ARCHES, MAX_PARAMETERS};

const RESNET: &str = "input = [3, 224, 224]\nclasses = 1000";
const GPT2: &str = "arch = \"gpt2\"\nvocab_size = 50257\nn_positions = 1024\nn_embd = 768\nn_layer = 12\nn_head = 12";
const BERT: &str = "arch = \"bert\"\nvocab_size = 30522\nhidden_size = 768\nnum_hidden_layers = 12\n\
                    num_attention_heads = 12\nintermediate_size = 3072\nclasses = 2";
const VIT: &str = "arch = \"vit\"\nimage_size = 224\npatch_size = 16\nhidden_dim = 768\nnum_layers = 12\n\
                   num_heads = 12\nmlp_dim = 3072\nclasses = 1000";

#[test]
fn parameters_are_counted_as_torchvision_and_transformers_count_them() {
    let count = |text: &str| model(text).arch.parameter_count();
    assert_eq!(
        count("arch = \"mlp\"\ninputs = 784\nhidden = [1024, 1024]\nclasses = 10"),
        1_863_690
    );
    assert_eq!(count(&format!("arch = \"resnet18\"\n{RESNET}")), 11_689_512);
    assert_eq!(count(&format!("arch = \"resnet34\"\n{RESNET}")), 21_797_672);
    assert_eq!(count(&format!("arch = \"resnet50\"\n{RESNET}")), 25_557_032);
    assert_eq!(count(GPT2), 124_439_808);
    assert_eq!(count(&format!("{GPT2}\ntie_word_embeddings = false")), 124_439_808 + 50257 * 768);
    assert_eq!(count(BERT), 109_483_778);
    assert_eq!(count(VIT), 86_567_656);
    // 3·3·3·64 in place of 3·7·7·64.
    let small = format!("arch = \"resnet18\"\nstem = \"small\"\n{RESNET}");
    assert_eq!(count(&small), 11_689_512 - 3 * 64 * (49 - 9));
}

#[test]
fn every_architecture_is_read_and_written_under_its_name() {
    let layers = "arch = \"layers\"\ninput = [2]\nlayers = [\"relu\"]".to_owned();
    let texts = [
        MLP.to_owned(),
        layers,
        format!("arch = \"resnet18\"\n{RESNET}"),
        format!("arch = \"resnet34\"\n{RESNET}"),
        format!("arch = \"resnet50\"\n{RESNET}"),
        GPT2.to_owned(),
        BERT.to_owned(),
        VIT.to_owned(),
    ];
    let names: Vec<String> = texts
        .iter()
        .map(|text| {
            let job = job(text, SGD, "").unwrap();
            let name = written(&job)["model"]["arch"].as_str().unwrap().to_owned();
            assert_eq!(job.model.arch.name(), name);
            name
        })
        .collect();
    assert_eq!(names, ARCHES);
}

#[test]
fn defaults_are_filled_in_beside_the_architectures_own_fields() {
    let of = |text: &str| written(&job(text, SGD, "").unwrap())["model"].clone();
    assert_eq!(
        of(MLP),
        json!({
            "arch": "mlp", "inputs": 4, "hidden": [], "classes": 2, "activation": "relu",
            "init_from": null, "init_strict": true,
        })
    );
    assert_eq!(
        of(GPT2),
        json!({
            "arch": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
            "n_head": 12, "n_inner": null, "activation_function": "gelu_new", "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": true, "init_from": null, "init_strict": true,
        })
    );
    assert_eq!(
        of(BERT),
        json!({
            "arch": "bert", "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12, "classes": 2,
            "init_from": null, "init_strict": true,
        })
    );
    let vit = of(VIT);
    assert_eq!((&vit["in_channels"], &vit["dropout"]), (&json!(3), &json!(0.0)));
    assert_eq!(of(&format!("arch = \"resnet50\"\n{RESNET}"))["stem"], "imagenet");
}

#[test]
fn weights_to_begin_with_are_named_by_digest_for_any_architecture() {
    let text = format!("{GPT2}\ninit_from = \"{DIGEST}\"\ninit_strict = false");
    let spec = model(&text);
    assert_eq!((spec.init_from.as_deref(), spec.init_strict), (Some(DIGEST), false));
    let errors = model_errors(&format!("{MLP}\ninit_from = \"weights\""));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("model.init_from: "), "{errors:?}");
}

#[test]
fn what_is_no_size_is_refused_with_its_path_whatever_the_architecture() {
    let negative = MLP.replace("inputs = 4", "inputs = -4");
    assert_eq!(
        model_errors(&negative),
        ["model.inputs: invalid value: integer `-4`, expected a whole number, 0 to 4294967295"]
    );
    assert_eq!(
        model_errors(&GPT2.replace("n_embd = 768", "n_embd = 7.5")),
        [
            "model.n_embd: invalid type: floating point `7.5`, expected a whole number, 0 to 4294967295"
        ]
    );
    assert_eq!(
        model_errors(&format!("{MLP}\nhidden = [3, \"x\"]")),
        ["model.hidden[1]: invalid type: string \"x\", expected a whole number, 0 to 4294967295"]
    );
    assert_eq!(
        model_errors(&format!("{MLP}\ninit_strict = 1")),
        ["model.init_strict: invalid type: integer `1`, expected a boolean"]
    );
    assert_eq!(
        model_errors(&MLP.replace("= 4", "= 0")),
        ["model.inputs: expected 1 to 1048576, got 0"]
    );
}

#[test]
fn a_misspelt_name_is_refused_with_the_nearest_one() {
    let hint = |text: &str, hint: &str| {
        let errors = model_errors(text);
        assert!(errors[0].ends_with(&format!("did you mean `{hint}`?")), "{errors:?}");
        errors[0].split_once(": ").unwrap().0.to_owned()
    };
    assert_eq!(hint(&MLP.replace("inputs", "input"), "inputs"), "model");
    assert_eq!(hint(&MLP.replace("mlp", "mlpp"), "mlp"), "model");
    assert_eq!(hint(&GPT2.replace("gpt2", "gpt-2"), "gpt2"), "model");
    assert_eq!(hint(&format!("{MLP}\ninit_form = \"x\""), "init_from"), "model");
    let text = format!("{MLP}\nactivation = \"gelo\"");
    assert_eq!(hint(&text, "gelu"), "model.activation");
    assert_eq!(model_errors("inputs = 4"), ["model: missing field `arch`"]);
    assert_eq!(model_errors("arch = \"mlp\"\ninputs = 4"), ["model: missing field `classes`"]);
}

#[test]
fn sizes_that_do_not_divide_are_refused_naming_both() {
    assert_eq!(
        model_errors(&GPT2.replace("n_head = 12", "n_head = 7")),
        ["model.n_head: expected a divisor of model.n_embd = 768, got 7"]
    );
    assert_eq!(
        model_errors(&BERT.replace("num_attention_heads = 12", "num_attention_heads = 5")),
        ["model.num_attention_heads: expected a divisor of model.hidden_size = 768, got 5"]
    );
    assert_eq!(
        model_errors(&VIT.replace("num_heads = 12", "num_heads = 9")),
        ["model.num_heads: expected a divisor of model.hidden_dim = 768, got 9"]
    );
    assert_eq!(
        model_errors(&VIT.replace("patch_size = 16", "patch_size = 15")),
        ["model.patch_size: expected a divisor of model.image_size = 224, got 15"]
    );
    // Nothing is divided by 0.
    let errors = model_errors(&VIT.replace("patch_size = 16", "patch_size = 0"));
    assert_eq!(errors, ["model.patch_size: expected 1 to 16384, got 0"]);
    let errors = model_errors(&GPT2.replace("n_head = 12", "n_head = 0"));
    assert_eq!(errors, ["model.n_head: expected 1 to 1048576, got 0"]);
}

#[test]
fn dropout_and_epsilon_have_ranges() {
    assert_eq!(
        model_errors(&format!(
            "{GPT2}\nresid_pdrop = 1.0\nattn_pdrop = -0.1\nlayer_norm_epsilon = 0"
        )),
        [
            "model.resid_pdrop: expected 0 or more and less than 1, got 1",
            "model.attn_pdrop: expected 0 or more and less than 1, got -0.1",
            "model.layer_norm_epsilon: expected above 0 to 1, got 0",
        ]
    );
    let errors = model_errors(&format!("{BERT}\nhidden_dropout_prob = 2"));
    assert_eq!(errors, ["model.hidden_dropout_prob: expected 0 or more and less than 1, got 2"]);
    let errors = model_errors(&format!("{VIT}\nattention_dropout = 1"));
    assert_eq!(errors, ["model.attention_dropout: expected 0 or more and less than 1, got 1"]);
}

#[test]
fn a_model_beyond_any_machine_is_refused_with_its_count() {
    let text = "arch = \"mlp\"\ninputs = 1048576\nhidden = [1048576]\nclasses = 1";
    let count: u64 = (1 << 40) + (1 << 20) + (1 << 20) + 1;
    assert_eq!(
        model_errors(text),
        [format!("model: expected at most {MAX_PARAMETERS} parameters, got {count}")]
    );
    // The largest sizes that ranges let through do not overflow.
    let text = GPT2
        .replace("= 50257", "= 1048576")
        .replace("= 768", "= 1048576")
        .replace("n_layer = 12", "n_layer = 1024")
        .replace("n_head = 12", "n_head = 1");
    assert!(model_errors(&text)[0].starts_with("model: expected at most"));
    let text = VIT.replace("= 224", "= 16384").replace("patch_size = 16", "patch_size = 1");
    let text = text.replace("= 768", "= 1048576").replace("= 12", "= 1");
    assert!(model_errors(&text)[0].starts_with("model: expected at most"));
    // Counting is a public function: it holds for specs that were never checked.
    let all = u32::MAX.to_string();
    for text in [GPT2, BERT, VIT, &format!("arch = \"resnet50\"\n{RESNET}")] {
        let huge: String = text
            .split('\n')
            .map(|line| match line.split_once(" = ") {
                Some((name, value)) if value.parse::<u32>().is_ok() => format!("{name} = {all}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let spec = job(&huge.replace("[3,", &format!("[{all},")), SGD, "").unwrap();
        assert!(MAX_PARAMETERS < spec.model.arch.parameter_count());
    }
}
