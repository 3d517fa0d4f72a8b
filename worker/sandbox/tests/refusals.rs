//! Components that are refused before they run. Written as text: no toolchain is needed.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_sandbox::{Sandbox, SandboxError, World};

fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(dir.path()).unwrap().to_owned();
    (dir, path)
}

fn world_of(text: &str) -> Result<World, SandboxError> {
    let (_dir, path) = folder();
    let path = path.join("guest.wat");
    std::fs::write(&path, text).unwrap();
    Sandbox::new(None).unwrap().component(&path)?.world()
}

#[test]
fn an_import_that_no_guest_gets_is_refused_by_name() {
    let error = world_of(
        r#"(component
            (import "wasi:clocks/wall-clock@0.2.0" (instance))
            (instance $empty)
            (export "lockstep:guest/loss@0.1.0" (instance $empty)))"#,
    )
    .unwrap_err();
    let SandboxError::UnknownImport { world, import, .. } = &error else { panic!("{error}") };
    assert_eq!((*world, import.as_str()), (World::Loss, "wasi:clocks/wall-clock@0.2.0"));
}

#[test]
fn a_loss_cannot_reach_the_dataset() {
    let error = world_of(
        r#"(component
            (import "lockstep:guest/dataset@0.1.0" (instance))
            (instance $empty)
            (export "lockstep:guest/loss@0.1.0" (instance $empty)))"#,
    )
    .unwrap_err();
    assert!(matches!(error, SandboxError::UnknownImport { .. }), "{error}");
    assert!(error.to_string().contains("lockstep:guest/dataset@0.1.0"), "{error}");
}

#[test]
fn an_import_of_another_type_is_refused() {
    let error = world_of(
        r#"(component
            (import "lockstep:guest/log@0.1.0"
                (instance (export "write" (func (param "message" string)))))
            (instance $empty)
            (export "lockstep:guest/loss-raw@0.1.0" (instance $empty)))"#,
    )
    .unwrap_err();
    assert!(matches!(error, SandboxError::Mismatch { world: World::LossRaw, .. }), "{error}");
    assert!(error.to_string().contains("write"), "{error}");
}

#[test]
fn an_export_without_its_functions_is_refused() {
    let error = world_of(
        r#"(component
            (instance $empty)
            (export "lockstep:guest/loader@0.1.0" (instance $empty)))"#,
    )
    .unwrap_err();
    assert!(matches!(error, SandboxError::Mismatch { world: World::Loader, .. }), "{error}");
}

#[test]
fn what_exports_no_guest_or_two_is_none() {
    let error = world_of(
        r#"(component
            (instance $empty)
            (export "lockstep:guest/loss@9.0.0" (instance $empty)))"#,
    )
    .unwrap_err();
    let SandboxError::NoWorld { found, .. } = &error else { panic!("{error}") };
    assert_eq!(found, &["lockstep:guest/loss@9.0.0"]);

    let error = world_of(
        r#"(component
            (instance $empty)
            (export "lockstep:guest/loss@0.1.0" (instance $empty))
            (export "lockstep:guest/loader@0.1.0" (instance $empty)))"#,
    )
    .unwrap_err();
    assert!(matches!(error, SandboxError::NoWorld { .. }), "{error}");
}

#[test]
fn bytes_that_are_no_component_are_refused() {
    for text in ["(module)", "hello", "", "\0asm\u{d}"] {
        let error = world_of(text).unwrap_err();
        assert!(matches!(error, SandboxError::Invalid { .. }), "{text:?}: {error}");
    }
}

#[test]
fn features_that_are_off_are_refused() {
    let modules = [
        "(memory i64 1)",
        "(memory 1 1 shared)",
        "(func (return_call 0))",
        "(type (struct))",
        "(tag)",
    ];
    for module in modules {
        let error = world_of(&format!("(component (core module {module}))")).unwrap_err();
        assert!(matches!(error, SandboxError::Invalid { .. }), "{module}: {error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Sandbox::new(None).unwrap().component(Utf8Path::new("/no/such.wasm")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the component /no/such.wasm");
}

#[test]
fn a_compiled_component_is_kept_and_a_damaged_one_is_made_again() {
    let (_dir, path) = folder();
    let (cache, source) = (path.join("cache"), path.join("guest.wat"));
    std::fs::write(&source, "(component (core module (func)))").unwrap();
    let entries = || {
        let entries = cache.join("compiled").read_dir_utf8().unwrap();
        entries.map(|entry| entry.unwrap().into_path()).collect::<Vec<_>>()
    };

    let digest =
        Sandbox::new(Some(&cache)).unwrap().component(&source).unwrap().digest().to_owned();
    let [compiled] = &entries()[..] else { panic!("{:?}", entries()) };
    assert!(compiled.as_str().ends_with(&format!("{digest}.cwasm")));
    let written = compiled.metadata().unwrap().modified().unwrap();

    Sandbox::new(Some(&cache)).unwrap().component(&source).unwrap();
    assert_eq!(compiled.metadata().unwrap().modified().unwrap(), written, "loaded, not made again");

    std::fs::write(compiled, "garbage").unwrap();
    Sandbox::new(Some(&cache)).unwrap().component(&source).unwrap();
    assert_ne!(std::fs::read(compiled).unwrap(), b"garbage");
    assert_eq!(entries().len(), 1);
}

#[test]
fn a_folder_of_compiled_components_that_others_can_enter_is_refused() {
    let (_dir, cache) = folder();
    Sandbox::new(Some(&cache)).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(cache.join("compiled"), open).unwrap();
    let error = Sandbox::new(Some(&cache)).unwrap_err();
    assert!(matches!(error, SandboxError::Cache { .. }), "{error}");
    assert!(error.to_string().contains("mode 755"), "{error}");
}
