//! The layout's arrows, as data, and the check that nothing else points anywhere.
//!
//! Cargo refuses circles between crates; which crate may use which, and which module of the server may
//! use which, is written here. A new edge is a change to these tables, in the same commit, with a reason.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;

use crate::{out, shell};

/// Which of our crates each of our crates may use, outside its tests.
const CRATES: &[(&str, &[&str])] = &[
    ("lockstep-api", &[]),
    ("lockstep-service", &[]),
    ("lockstep-postgres", &[]),
    ("lockstep-shm", &[]),
    ("lockstep-client", &["lockstep-api"]),
    ("lockstep-core", &["lockstep-api"]),
    ("lockstep-tensor", &[]),
    ("lockstep-server", &["lockstep-api", "lockstep-core", "lockstep-service"]),
    ("lockstep-collective", &["lockstep-shm"]),
    ("lockstep-checkpoint", &["lockstep-api", "lockstep-tensor"]),
    ("lockstep-sandbox", &["lockstep-tensor"]),
    // From a job's model to layers on a tape.
    ("lockstep-models", &["lockstep-api", "lockstep-tensor"]),
    ("lockstep-ddp", &["lockstep-collective", "lockstep-shm", "lockstep-tensor"]),
    (
        "lockstep-rank",
        &[
            "lockstep-api",
            "lockstep-checkpoint",
            "lockstep-collective",
            "lockstep-ddp",
            "lockstep-models",
            "lockstep-sandbox",
            "lockstep-service",
            "lockstep-shm",
            "lockstep-tensor",
        ],
    ),
    // What programs that measure ranks have in common; makes the group's memory, as the agent does.
    ("lockstep-bench-ranks", &["lockstep-shm"]),
    // Our side of the step and DDP benchmarks: models, engine and reducer, nothing around them.
    (
        "lockstep-step-bench",
        &[
            "lockstep-api",
            "lockstep-bench-ranks",
            "lockstep-ddp",
            "lockstep-models",
            "lockstep-tensor",
        ],
    ),
    // Our side of the all-reduce benchmark: a group of two ranks, nothing around it.
    ("lockstep-allreduce-bench", &["lockstep-bench-ranks", "lockstep-collective", "lockstep-shm"]),
    // The agent reads flight records and makes the group's memory.
    ("lockstep-agent", &["lockstep-api", "lockstep-client", "lockstep-service", "lockstep-shm"]),
    // `lockstep up` owns the private cluster.
    ("lockstep-cli", &["lockstep-api", "lockstep-client", "lockstep-postgres"]),
    // Real binaries, asserted from outside.
    ("lockstep-e2e", &["lockstep-api", "lockstep-client", "lockstep-postgres"]),
    ("xtask", &["lockstep-postgres"]),
];

/// Crates that only some may use, tests included: they are what makes a build slow or unsafe.
const HEAVY: &[(&str, &[&str])] = &[
    ("wasmtime", &["lockstep-sandbox"]),
    // With it come TLS and the protocols of three clouds.
    ("object_store", &["lockstep-server"]),
];

/// One edge that the layout does not allow.
#[derive(Debug, PartialEq, Eq)]
struct Forbidden {
    place: String,
    rule: String,
}

/// Checks the whole repository.
pub(crate) fn run(root: &Utf8Path) -> anyhow::Result<()> {
    let mut found = crate_edges(&packages(root)?);
    found.extend(server_modules(&root.join("server/src"))?);
    for Forbidden { place, rule } in &found {
        out::note(&format!("{place}: {rule}"));
    }
    match found.len() {
        0 => Ok(()),
        count => bail!("{count} forbidden edges; the tables are in xtask/src/arrows.rs"),
    }
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: Utf8PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<Utf8PathBuf>,
}

fn packages(root: &Utf8Path) -> anyhow::Result<Vec<Package>> {
    let mut command = shell::cargo(root);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--locked"]);
    let metadata: Metadata =
        serde_json::from_str(&shell::read(&mut command)?).context("reading cargo metadata")?;
    Ok(metadata.packages)
}

fn crate_edges(packages: &[Package]) -> Vec<Forbidden> {
    let table: BTreeMap<&str, &[&str]> = CRATES.iter().copied().collect();
    let mut found = Vec::new();
    for package in packages {
        let place = package.manifest_path.to_string();
        let Some(allowed) = table.get(package.name.as_str()) else {
            let rule = format!("{} has no row in the table of crates", package.name);
            found.push(Forbidden { place, rule });
            continue;
        };
        for dependency in &package.dependencies {
            let is_ours = dependency.path.is_some();
            let is_for_tests = dependency.kind.as_deref() == Some("dev");
            if is_ours && !is_for_tests && !allowed.contains(&dependency.name.as_str()) {
                let rule = format!("{} must not use {}", package.name, dependency.name);
                found.push(Forbidden { place: place.clone(), rule });
            }
            for (heavy, users) in HEAVY {
                if dependency.name == *heavy && !users.contains(&package.name.as_str()) {
                    let rule = format!("only {users:?} may use {heavy}");
                    found.push(Forbidden { place: place.clone(), rule });
                }
            }
        }
    }
    found
}

/// Inside the server: `router → */http → */store`; a noun's `http` is for the router alone; `store` decides nothing,
/// so it knows neither HTTP nor the reconcilers.
fn server_modules(source: &Utf8Path) -> anyhow::Result<Vec<Forbidden>> {
    let mut found = Vec::new();
    for path in rust_files(source)? {
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let file = path.strip_prefix(source)?.as_str().replace('\\', "/");
        for (index, line) in text.lines().enumerate() {
            if let Some(rule) = module_rule(&file, line) {
                let place = format!("{path}:{}", index + 1);
                found.push(Forbidden { place, rule });
            }
        }
    }
    Ok(found)
}

/// The rule that `line` of `file` (relative to `server/src`) breaks.
fn module_rule(file: &str, line: &str) -> Option<String> {
    let line = line.trim();
    let import = line.strip_prefix("pub(crate) ").unwrap_or(line).strip_prefix("use crate::")?;
    let parts: Vec<&str> = import
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|p| !p.is_empty())
        .collect();
    let noun = file.split('/').next().unwrap_or_default();
    let is_store = file.contains("/store");
    let names_http = 2 <= parts.len() && parts[1] == "http";
    if names_http && file != "router.rs" && parts[0] != noun {
        return Some(format!("{file} uses another noun's http ({import})"));
    }
    if is_store
        && (names_http || matches!(parts[0], "router" | "reconcile" | "extract" | "problem"))
    {
        return Some(format!("{file} is a store and must not use {import}"));
    }
    None
}

fn rust_files(folder: &Utf8Path) -> anyhow::Result<Vec<Utf8PathBuf>> {
    let mut files = Vec::new();
    let entries = folder.read_dir_utf8().with_context(|| format!("listing {folder}"))?;
    for entry in entries {
        let path = entry?.into_path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension() == Some("rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[(&str, Option<&str>, bool)]) -> Package {
        let dependencies = uses
            .iter()
            .map(|(name, kind, is_ours)| Dependency {
                name: (*name).to_owned(),
                kind: kind.map(str::to_owned),
                path: is_ours.then(|| Utf8PathBuf::from("x")),
            })
            .collect();
        Package { name: name.to_owned(), manifest_path: "Cargo.toml".into(), dependencies }
    }

    #[test]
    fn a_forbidden_edge_between_crates_is_found_and_named() {
        let found = crate_edges(&[package("lockstep-server", &[("lockstep-tensor", None, true)])]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].rule, "lockstep-server must not use lockstep-tensor");
    }

    #[test]
    fn a_heavy_crate_is_refused_even_in_tests() {
        let found = crate_edges(&[package("lockstep-agent", &[("wasmtime", Some("dev"), false)])]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn an_edge_for_tests_alone_is_allowed_and_a_crate_without_a_row_is_not() {
        assert_eq!(
            crate_edges(&[package("lockstep-server", &[("lockstep-postgres", Some("dev"), true)])]),
            []
        );
        assert_eq!(crate_edges(&[package("lockstep-new", &[])]).len(), 1);
    }

    #[test]
    fn the_command_fails_on_a_repository_with_a_forbidden_edge() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"core\", \"client\"]\n");
        let manifest = |name: &str, rest: &str| {
            format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}")
        };
        write("client/Cargo.toml", &manifest("lockstep-client", ""));
        write("client/src/lib.rs", "");
        write("core/src/lib.rs", "");
        write("server/src/lib.rs", "");
        write("core/Cargo.toml", &manifest("lockstep-core", ""));
        let lock = || shell::run(shell::cargo(root).args(["generate-lockfile", "--offline"]));
        lock().unwrap();
        run(root).unwrap();

        let edge = "[dependencies]\nlockstep-client = { path = \"../client\" }\n";
        write("core/Cargo.toml", &manifest("lockstep-core", edge));
        lock().unwrap();
        assert!(run(root).unwrap_err().to_string().contains("1 forbidden edge"));
    }

    #[test]
    fn modules_of_the_server_are_held_to_their_rule() {
        let bad = [
            ("jobs/http.rs", "use crate::nodes::http::NodeView;"),
            ("jobs/store.rs", "use crate::problem::Problem;"),
            ("jobs/store/lifecycle.rs", "use crate::extract::Json;"),
        ];
        for (file, line) in bad {
            assert!(module_rule(file, line).is_some(), "{file}: {line}");
        }
        let good = [
            ("jobs/http.rs", "use crate::nodes::store;"),
            ("router.rs", "use crate::{jobs::http, nodes};"),
            ("router.rs", "use crate::jobs::http::list_jobs;"),
            ("jobs/store.rs", "use crate::db::Scope;"),
        ];
        for (file, line) in good {
            assert_eq!(module_rule(file, line), None, "{file}: {line}");
        }
    }
}
