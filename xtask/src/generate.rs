//! Contracts that are generated and committed. CI runs this and fails if the tree is dirty afterwards.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;

use anyhow::Context as _;
use camino::Utf8Path;

use crate::database::Throwaway;
use crate::{database, session, shell};

/// Regenerates all of them.
pub(crate) fn run(root: &Utf8Path) -> anyhow::Result<()> {
    queries(root)?;
    openapi(root)?;
    shell::run(&mut shell::npm(root, &["run", "--silent", "generate"]))
}

/// `.sqlx`: what the database says of every query, so that a build needs none.
fn queries(root: &Utf8Path) -> anyhow::Result<()> {
    let database = Throwaway::start()?;
    database::migrate(root, &database)?;
    std::fs::create_dir_all(shell::target_dir(root))?;
    let fresh = tempfile::tempdir_in(shell::target_dir(root)).context("making a folder")?;
    // A macro runs only when its crate is compiled: touching the crate's root compiles it. What is built is what the tests need,
    // with the same features of every dependency: anything else would compile most of them once more.
    let crate_root = root.join("server/src/lib.rs");
    let text = std::fs::read(&crate_root).with_context(|| format!("reading {crate_root}"))?;
    std::fs::write(&crate_root, text).with_context(|| format!("touching {crate_root}"))?;
    let mut build = session::build_for_tests(root);
    build.env("SQLX_OFFLINE", "false");
    build.env("DATABASE_URL", database.url()).env("SQLX_OFFLINE_DIR", fresh.path());
    shell::run(&mut build)?;
    let committed = root.join(".sqlx");
    std::fs::create_dir_all(&committed).with_context(|| format!("making {committed}"))?;
    let names = |folder: &std::path::Path| -> anyhow::Result<BTreeSet<OsString>> {
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
    };
    let wanted = names(fresh.path())?;
    for name in names(committed.as_std_path())?.difference(&wanted) {
        std::fs::remove_file(committed.as_std_path().join(name))?;
    }
    for name in wanted {
        let name = name.into_string().map_err(|name| anyhow::anyhow!("{name:?}"))?;
        replace(&committed.join(&name), std::fs::read_to_string(fresh.path().join(&name))?)?;
    }
    Ok(())
}

/// Writes a file unless it says so already: what is younger than a build is built again.
fn replace(path: &Utf8Path, text: String) -> anyhow::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("writing {path}"))
}

/// `sdk/openapi.json`, from the server itself, which is built.
fn openapi(root: &Utf8Path) -> anyhow::Result<()> {
    let mut server = Command::new(shell::target_dir(root).join("debug/lockstep-server"));
    server.arg("openapi");
    let document = shell::read(&mut server)?;
    replace(&root.join("sdk/openapi.json"), document)
}
