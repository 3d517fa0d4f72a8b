//! `lockstep-rank sample`, as the command line runs it, over a checkpoint of drawn weights: no training.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{SampleEvent, SampleRequest, SampleWeights, Step};
use lockstep_checkpoint::{FORMAT_VERSION, Meta, State, save};
use lockstep_models::{IDS, Mode, Model};
use lockstep_tensor::{OptimizerState, Tape};
use serde_json::json;

const VOCABULARY: usize = 32;
const POSITIONS: usize = 6;

/// A checkpoint of a small model, and a request for 40 tokens from it.
struct Case {
    folder: tempfile::TempDir,
    model: Model,
    weights: Vec<f32>,
    request: SampleRequest,
}

impl Case {
    /// The mean of the weights is other weights.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().join("step-1.safetensors")).unwrap();
        let spec: lockstep_api::ModelSpec = serde_json::from_value(json!({
            "arch": "gpt2", "vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": 2,
            "tie_word_embeddings": false
        }))
        .unwrap();
        let model = Model::new(&spec).unwrap();
        // Wider than a model begins with: what comes next then depends on what was before.
        let draw = |seed| -> Vec<f32> {
            model.initial_weights(seed).iter().map(|weight| 10.0 * weight).collect()
        };
        let (weights, average) = (draw(3), draw(4));
        let optimizer =
            OptimizerState { step: 1, moments: vec![("m".to_owned(), vec![0.0; weights.len()])] };
        let state = State {
            layout: model.layout(),
            weights: &weights,
            buffer_layout: model.buffers(),
            buffers: &[],
            average: Some(&average),
            hook: None,
            optimizer: &optimizer,
        };
        let meta = Meta {
            version: FORMAT_VERSION,
            step: Step(1),
            data_epoch: 0,
            next_position: 0,
            samples_per_epoch: 1,
            optimizer_step: 1,
            loss_scale: None,
            settings: json!({ "model": spec }),
            digests: std::collections::BTreeMap::new(),
        };
        save(&path, &state, &meta).unwrap();
        let request = SampleRequest {
            model: spec,
            checkpoint_path: path.into_string(),
            weights: SampleWeights::Last,
            prompt_ids: vec![7, 3],
            tokens: 40,
            temperature: 1.0,
            top_k: None,
            seed: 5,
        };
        Self { folder, model, weights, request }
    }

    fn with(&self, change: impl FnOnce(&mut SampleRequest)) -> SampleRequest {
        let mut request = self.request.clone();
        change(&mut request);
        request
    }

    /// The likeliest token behind `window`, by the model itself.
    fn likeliest(&self, window: &[i64]) -> u32 {
        let mut tape = Tape::new(Arc::clone(self.model.layout()));
        let ids = tape.index(&[1, window.len()], window).unwrap();
        let mut workspace = self.model.workspace();
        let inputs = [(IDS, ids)];
        let logits =
            self.model.forward(&mut tape, &inputs, &self.weights, &[], Mode::Eval, &mut workspace);
        let logits = tape.values(logits.unwrap()).unwrap();
        let last = &logits[(window.len() - 1) * VOCABULARY..];
        let largest = last.iter().copied().fold(f32::MIN, f32::max);
        last.iter().position(|logit| *logit == largest).unwrap() as u32
    }
}

fn run(input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep-rank"))
        .arg("sample")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn events(request: &SampleRequest) -> Vec<SampleEvent> {
    let output = run(&serde_json::to_vec(request).unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn tokens(request: &SampleRequest) -> Vec<u32> {
    let id = |event| match event {
        SampleEvent::Token { id } => id,
        other => panic!("{other:?}"),
    };
    events(request).into_iter().map(id).collect()
}

#[test]
fn the_same_seed_makes_the_same_text_and_another_seed_or_other_weights_another() {
    let case = Case::new();
    let made = tokens(&case.request);
    assert_eq!(made.len(), 40);
    assert!(made.iter().all(|id| (*id as usize) < VOCABULARY));
    assert_eq!(tokens(&case.request), made);
    let fewer = tokens(&case.with(|it| it.tokens = 10));
    assert_eq!(fewer, made[..10], "how many are made changes none of them");
    assert_ne!(tokens(&case.with(|it| it.seed = 6)), made);
    assert_ne!(tokens(&case.with(|it| it.prompt_ids = vec![7, 4])), made);
    assert_ne!(tokens(&case.with(|it| it.weights = SampleWeights::Ema)), made);
}

#[test]
fn temperature_zero_is_the_model_s_likeliest_token_behind_the_last_positions() {
    let case = Case::new();
    let made = tokens(&case.with(|it| it.temperature = 0.0));
    let mut text = vec![7_i64, 3];
    for id in &made {
        assert_eq!(*id, case.likeliest(&text[text.len().saturating_sub(POSITIONS)..]));
        text.push(i64::from(*id));
    }
    assert_eq!(tokens(&case.with(|it| it.top_k = Some(1))), made, "one to draw from");
    assert_ne!(made[..8], made[8..16], "a text that says something");
}

#[test]
fn what_does_not_hold_is_answered_with_the_reason() {
    let case = Case::new();
    let last_words = |request: &SampleRequest| match &events(request)[..] {
        [SampleEvent::Refused { errors }] => errors[0].to_string(),
        [SampleEvent::Failed { message }] => message.clone(),
        other => panic!("{other:?}"),
    };
    let found = last_words(&case.with(|it| it.top_k = Some(0)));
    assert_eq!(found, "top_k: 0, expected 1 or more");
    let found = last_words(&case.with(|it| it.prompt_ids = vec![1; 7]));
    assert_eq!(found, "prompt_ids: 7 tokens, expected 1 to 6 (model.n_positions)");
    let missing = case.folder.path().join("none.safetensors").to_str().unwrap().to_owned();
    let found = last_words(&case.with(|it| it.checkpoint_path = missing));
    assert!(found.contains("cannot read") && found.contains("none.safetensors"), "{found}");
    let other = json!({
        "arch": "gpt2", "vocab_size": VOCABULARY, "n_positions": 7, "n_embd": 16, "n_layer": 2, "n_head": 2,
            "tie_word_embeddings": false
    });
    let found = last_words(&case.with(|it| it.model = serde_json::from_value(other).unwrap()));
    assert!(found.contains("`model.n_positions` differs"), "{found}");
    let output = run(b"{}");
    assert!(!output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("reading the sample request"), "{words}");
}

#[test]
fn a_model_that_has_diverged_says_so() {
    let mut case = Case::new();
    let path = Utf8Path::new(&case.request.checkpoint_path).to_owned();
    case.weights.fill(f32::NAN);
    let optimizer = OptimizerState { step: 1, moments: Vec::new() };
    let state = State {
        layout: case.model.layout(),
        weights: &case.weights,
        buffer_layout: case.model.buffers(),
        buffers: &[],
        average: None,
        hook: None,
        optimizer: &optimizer,
    };
    let meta = Meta {
        version: FORMAT_VERSION,
        step: Step(1),
        data_epoch: 0,
        next_position: 0,
        samples_per_epoch: 1,
        optimizer_step: 1,
        loss_scale: None,
        settings: json!({ "model": case.request.model }),
        digests: std::collections::BTreeMap::new(),
    };
    save(&path, &state, &meta).unwrap();
    let expected = "token 1: the model puts out numbers that are not finite".to_owned();
    assert_eq!(events(&case.request), [SampleEvent::Failed { message: expected }]);
}
