use lockstep_api::RankCount;

use super::*;

const JOB: &str = r#"
name = "digits-mlp"
[model]
arch = "mlp"
inputs = 64
hidden = [128, 64]
classes = 10
[data]
train = "digits/train"
eval = "./test"
[loader]
component = "./loader.wasm"
[loss]
component = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
[train]
global_batch = 128
micro_batch = 32
epochs = 20
optimizer = { name = "adamw", lr = 1e-3 }
"#;

struct Folder {
    _dir: tempfile::TempDir,
    path: Utf8PathBuf,
}

/// A folder with a job and what it names.
fn folder(job: &str) -> Folder {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::try_from(dir.path().to_owned()).unwrap();
    std::fs::write(path.join("job.toml"), job).unwrap();
    std::fs::write(path.join("loader.wasm"), "").unwrap();
    std::fs::create_dir(path.join("test")).unwrap();
    Folder { _dir: dir, path }
}

fn read_job(job: &str, set: &[&str]) -> anyhow::Result<JobFile> {
    let folder = folder(job);
    read(&arguments(folder.path.join("job.toml"), set))
}

fn arguments(file: Utf8PathBuf, set: &[&str]) -> SubmitArgs {
    let set = set.iter().map(|&text| text.to_owned()).collect();
    SubmitArgs { file, ranks: None, name: None, priority: None, set, idempotency_key: None }
}

fn refusal(job: &str, set: &[&str]) -> String {
    let error = read_job(job, set).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Failure::Usage(_))), "{error:?}");
    error.to_string()
}

#[test]
fn paths_are_found_relative_to_the_file_and_names_and_digests_are_left_alone() {
    let folder = folder(JOB);
    let job = read(&arguments(folder.path.join("job.toml"), &[])).unwrap();
    let found: Vec<_> = job.uploads.iter().map(|it| (it.field, it.path.clone())).collect();
    assert_eq!(
        found,
        [
            (Field::Loader, folder.path.join("./loader.wasm")),
            (Field::Eval, folder.path.join("./test"))
        ]
    );
}

#[test]
fn a_missing_file_is_refused_with_its_field_and_full_path() {
    let error = refusal(&JOB.replace("./loader.wasm", "./nowhere.wasm"), &[]);
    assert!(error.contains("loader.component") && error.contains("/nowhere.wasm"), "{error}");
    // A folder is data, not a component.
    let error = refusal(&JOB.replace("./loader.wasm", "./test"), &[]);
    assert!(error.contains("loader.component"), "{error}");
}

#[test]
fn weights_to_begin_with_are_a_file_that_is_uploaded() {
    let job = JOB.replace("[data]", "init_from = \"./weights.safetensors\"\n[data]");
    let folder = folder(&job);
    let path = folder.path.join("./weights.safetensors");
    let args = arguments(folder.path.join("job.toml"), &[]);
    let error = read(&args).unwrap_err().to_string();
    assert!(error.contains("model.init_from: expected a file"), "{error}");
    std::fs::write(&path, "").unwrap();
    let mut job = read(&args).unwrap();
    assert!(job.uploads.contains(&LocalFile { field: Field::InitFrom, path }));
    Field::InitFrom.set(&mut job.spec, "sha256:0".to_owned());
    assert_eq!(job.spec.model.init_from.as_deref(), Some("sha256:0"));
    let error = refusal(JOB, &["model.init_from=weights.safetensors"]);
    assert!(error.contains("model.init_from") && error.contains("begins with ./"), "{error}");
}

#[test]
fn a_negative_number_is_refused_with_its_full_path() {
    let error = refusal(JOB, &["model.inputs=-1"]);
    assert!(error.contains("model.inputs: invalid value: integer `-1`"), "{error}");
}

#[test]
fn a_bare_file_name_is_told_how_paths_begin() {
    let error = refusal(&JOB.replace("./loader.wasm", "loader.wasm"), &[]);
    assert!(error.contains("loader.component") && error.contains("begins with ./"), "{error}");
}

#[test]
fn settings_override_the_file_and_the_last_one_wins() {
    let folder = folder(JOB);
    let mut args = arguments(
        folder.path.join("job.toml"),
        &[
            "train.seed=9",
            "train.optimizer.lr=0.5",
            "ddp.reduction=fixed-tree",
            "model.hidden[1]=7",
            "loader.config={ mode = \"loop\", list = [1, 2] }",
            "labels.team=vision",
            "gang.ranks=3",
        ],
    );
    args.ranks = Some(RankCount::Fixed(2));
    args.name = Some("other".to_owned());
    args.priority = Some(60);
    let spec = read(&args).unwrap().spec;
    assert_eq!(
        (spec.name.as_str(), spec.train.seed, spec.gang.ranks),
        ("other", 9, RankCount::Fixed(3))
    );
    assert_eq!(spec.ddp.reduction, lockstep_api::Reduction::FixedTree);
    let lockstep_api::ArchSpec::Mlp(mlp) = &spec.model.arch else { panic!("{:?}", spec.model) };
    assert_eq!(mlp.hidden, [128, 7]);
    assert_eq!(spec.loader.config, serde_json::json!({ "mode": "loop", "list": [1, 2] }));
    assert_eq!(spec.labels["team"], "vision");
    assert_eq!(spec.priority.0, 60);
    args.priority = Some(100);
    let error = read(&args).unwrap_err().to_string();
    assert!(error.contains("priority: expected 0 to 99, got 100"), "{error}");
}

#[test]
fn a_setting_that_fits_nowhere_is_refused_with_its_path() {
    assert!(refusal(JOB, &["train.globl_batch=3"]).contains("did you mean `global_batch`"));
    assert!(refusal(JOB, &["train.epochs=soon"]).contains("train.epochs"));
    let told = refusal(JOB, &["gang.ranks=2", "gang.ranks.min=1"]);
    let hint = "gang.ranks has no fields: --set 'gang.ranks={ min = 1, max = 4 }' takes its place";
    assert!(told.ends_with(hint), "{told}");
    assert!(refusal(JOB, &["name.first=x"]).ends_with("name has no fields"));
    assert!(refusal(JOB, &["model.hidden[5]=1"]).contains("an index below 2"));
    assert!(refusal(JOB, &["train.seed"]).contains("FIELD=VALUE"));
    assert!(refusal(JOB, &["=1"]).contains("FIELD=VALUE"));
}

#[test]
fn every_value_out_of_range_is_named_at_once() {
    let error = refusal(JOB, &["train.epochs=0", "gang.ranks=0"]);
    assert!(error.contains("train.epochs") && error.contains("gang.ranks"), "{error}");
}

#[test]
fn a_number_that_json_lacks_does_not_pass_for_an_absent_field() {
    for number in ["nan", "inf", "-inf"] {
        let error = refusal(JOB, &[&format!("train.max_steps={number}")]);
        assert!(error.contains("train.max_steps"), "{error}");
        let error = refusal(&JOB.replace("lr = 1e-3", &format!("lr = {number}")), &[]);
        assert!(error.contains("train.optimizer.lr: expected a finite number"), "{error}");
        let error = refusal(&JOB.replace("[128, 64]", &format!("[128, {number}]")), &[]);
        assert!(error.contains("model.hidden[1]: expected a finite number"), "{error}");
    }
}

#[test]
fn a_file_that_is_no_toml_is_refused_with_the_line() {
    let error = refusal("name = \n", &[]);
    assert!(error.contains("job.toml") && error.contains("line 1"), "{error}");
}

#[test]
fn json_is_read_by_its_extension() {
    let folder = folder(JOB);
    let value: Value = parse_text("job.toml".into(), JOB).unwrap();
    let path = folder.path.join("job.json");
    std::fs::write(&path, value.to_string()).unwrap();
    assert_eq!(read(&arguments(path, &[])).unwrap().spec.name, "digits-mlp");
}

#[test]
fn a_value_cannot_smuggle_in_a_second_assignment() {
    assert_eq!(read_value("1\nother = 2"), Value::from("1\nother = 2"));
    assert_eq!(read_value("1"), Value::from(1));
    assert_eq!(read_value("1e-3"), Value::from(1e-3));
    assert_eq!(read_value("./x.wasm"), Value::from("./x.wasm"));
    assert_eq!(read_value("2026-11-29"), Value::from("2026-11-29"));
}
