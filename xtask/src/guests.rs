//! Guests: their toolchain, and building them from source into components.
//!
//! Rust guests are built for `wasm32-unknown-unknown` with Debian's `rustc-web`, which comes with its
//! matching library sources; nothing is downloaded as binary, and the result imports nothing of WASI.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::Command;

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};
use wit_component::ComponentEncoder;

use crate::{out, setup, shell};

/// Debian packages of the toolchain. Debian moves their versions; compiler and sources must match.
const PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src", "lld-22"];

const TARGET: &str = "wasm32-unknown-unknown";

const LINKER: &str = "wasm-ld-22";

/// A cargo package that becomes a component.
struct Guest {
    /// Folder of its workspace.
    workspace: &'static str,
    /// The package, a folder and a module of that name (with `_` for `-`).
    package: &'static str,
    /// Folders of that workspace that it is made of, besides its own.
    made_of: &'static [&'static str],
    /// Where the component goes, in the workspace's folder.
    component: &'static str,
}

const DIGITS: &str = "examples/digits";
const FASHION: &str = "examples/fashion";
const TEXT: &str = "examples/text";
const TESTS: &str = "worker/sandbox/tests/guests";

const GUESTS: &[Guest] = &[
    Guest::new(DIGITS, "loader", "digits-loader", &[]),
    Guest::new(DIGITS, "loss", "cross-entropy", &[]),
    Guest::new(FASHION, "loader", "fashion-loader", &[]),
    Guest::new(FASHION, "loss", "fashion-loss", &[]),
    Guest::new(TEXT, "loader", "text-loader", &[]),
    Guest::new(TEXT, "loss", "language-model", &[]),
    Guest::new(TESTS, "loader", "misbehaving-loader", &["misbehave"]),
    Guest::new(TESTS, "loss", "misbehaving-loss", &["misbehave"]),
    Guest::new(TESTS, "operations", "operations", &[]),
    Guest::new(TESTS, "raw-loss", "misbehaving-raw-loss", &["misbehave"]),
];

/// Built components that the cache keeps.
const CACHED_CAP: usize = 64;

/// Installs the Debian packages that are missing. Quick when none is.
pub(crate) fn setup_toolchain() -> anyhow::Result<()> {
    let missing: Vec<&str> =
        PACKAGES.iter().copied().filter(|package| installed_version(package).is_none()).collect();
    if missing.is_empty() {
        out::note("the guests' toolchain is there");
    } else {
        setup::apt_install(&missing).context("installing the guests' toolchain")?;
    }
    Toolchain::find().map(drop)
}

/// Makes every guest's component what its sources say.
///
/// Built components are kept in the user's cache under a hash of everything they are made of, so that a
/// fresh clone only copies them, and clones with different sources do not meet.
pub(crate) fn build(root: &Utf8Path) -> anyhow::Result<()> {
    let cache = shell::cache_dir()?.join("guests");
    let kept = cache.join("components");
    std::fs::create_dir_all(&kept).with_context(|| format!("making {kept}"))?;
    let mut changed = false;
    for guest in GUESTS {
        let name = guest.component;
        let built = kept.join(format!("{name}-{:016x}.wasm", guest.hash(root)?));
        if !built.is_file() {
            guest
                .build(root, &cache, &built)
                .with_context(|| format!("building the guest {name}"))?;
        }
        let component = std::fs::read(&built).with_context(|| format!("reading {built}"))?;
        let path = root.join(guest.workspace).join(format!("{name}.wasm"));
        if std::fs::read(&path).is_ok_and(|present| present == component) {
            continue;
        }
        write(&path, &component)?;
        changed = true;
        out::note(&format!("made {path}"));
    }
    if !changed {
        out::note("the guests are up to date");
    }
    remove_oldest(&kept)
}

/// The programs of the toolchain.
struct Toolchain {
    cargo: Utf8PathBuf,
    rustc: Utf8PathBuf,
    version: String,
}

impl Toolchain {
    fn find() -> anyhow::Result<Self> {
        let version = installed_version("rustc-web").context("Debian's rustc-web is missing")?;
        let sources = installed_version("rust-web-src").context("rust-web-src is missing")?;
        if version != sources {
            bail!(
                "rustc-web is {version} but rust-web-src is {sources}: upgrade both to one version"
            );
        }
        if !shell::has(LINKER) {
            bail!("{LINKER} is missing; Debian's package is lld-22");
        }
        // A rustup toolchain may come first in PATH; these two must be Debian's.
        let cargo = program("cargo-web", "cargo")?;
        let rustc = program("rustc-web", "rustc")?;
        Ok(Self { cargo, rustc, version })
    }

    /// cargo in a guest's folder, undisturbed by the settings of the cargo that runs this task.
    fn cargo(&self, package: &Utf8Path, target_dir: &Utf8Path) -> Command {
        let mut cargo = Command::new(&self.cargo);
        for inherited in ["RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTDOC"]
        {
            cargo.env_remove(inherited);
        }
        cargo
            .current_dir(package)
            .env("RUSTC", &self.rustc)
            // Debian's compiler is a stable one; building its library needs an unstable flag.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Ctarget-feature=+simd128")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", LINKER)
            .env("CARGO_TARGET_DIR", target_dir);
        cargo
    }
}

impl Guest {
    const fn new(
        workspace: &'static str,
        package: &'static str,
        component: &'static str,
        made_of: &'static [&'static str],
    ) -> Self {
        Self { workspace, package, made_of, component }
    }

    /// Of the names and contents of everything the component is made of.
    fn hash(&self, root: &Utf8Path) -> anyhow::Result<u64> {
        let mut hasher = DefaultHasher::new();
        installed_version("rustc-web").hash(&mut hasher);
        // What this file does to a module counts too.
        include_str!("guests.rs").hash(&mut hasher);
        hash_tree(root, Utf8Path::new("sdk/guest"), &mut hasher)?;
        let workspace = Utf8Path::new(self.workspace);
        let own = [self.package, "Cargo.toml", "Cargo.lock"];
        for part in own.iter().chain(self.made_of) {
            hash_tree(root, &workspace.join(part), &mut hasher)?;
        }
        Ok(hasher.finish())
    }

    fn build(&self, root: &Utf8Path, cache: &Utf8Path, to: &Utf8Path) -> anyhow::Result<()> {
        let toolchain = Toolchain::find()?;
        let version = toolchain.version.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        // Outlives a clone, so that the standard library is built once a machine and version.
        let target_dir = cache.join(version);
        std::fs::create_dir_all(&target_dir).with_context(|| format!("making {target_dir}"))?;
        let lock = target_dir.join("xtask.lock");
        let lock = File::create(&lock).with_context(|| format!("making {lock}"))?;
        lock.lock().context("waiting for another build of guests")?;

        let package = root.join(self.workspace).join(self.package);
        // Cargo gives modules of one name one path, whichever clone they are from, and tells by time
        // whether one is fresh: without this it could take another clone's for ours.
        let mut clean = toolchain.cargo(&package, &target_dir);
        clean.args(["clean", "--quiet", "--release", "--locked", "--target", TARGET]);
        shell::run(clean.args(["--package", self.component]))?;
        let mut build = toolchain.cargo(&package, &target_dir);
        build.args(["build", "--release", "--locked", "--target", TARGET]);
        shell::run(build.arg("-Zbuild-std=std,panic_abort"))?;

        let module = format!("{}.wasm", self.component.replace('-', "_"));
        let module = target_dir.join(TARGET).join("release").join(module);
        let module = std::fs::read(&module).with_context(|| format!("reading {module}"))?;
        write(to, &componentize(&module)?)
    }
}

/// Renamed into place: whoever reads it meanwhile sees the old one or the new one.
fn write(path: &Utf8Path, content: &[u8]) -> anyhow::Result<()> {
    let temporary = path.with_extension("wasm.tmp");
    std::fs::write(&temporary, content).with_context(|| format!("writing {temporary}"))?;
    std::fs::rename(&temporary, path).with_context(|| format!("writing {path}"))
}

fn hash_tree(root: &Utf8Path, part: &Utf8Path, hasher: &mut DefaultHasher) -> anyhow::Result<()> {
    let path = root.join(part);
    if path.is_dir() {
        let entries = path.read_dir_utf8()?.collect::<Result<Vec<_>, _>>()?;
        let mut names: Vec<&str> = entries.iter().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        for name in names.into_iter().filter(|name| *name != "target") {
            hash_tree(root, &part.join(name), hasher)?;
        }
        return Ok(());
    }
    part.as_str().hash(hasher);
    std::fs::read(&path).with_context(|| format!("reading {path}"))?.hash(hasher);
    Ok(())
}

fn remove_oldest(kept: &Utf8Path) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for entry in kept.read_dir_utf8()? {
        let entry = entry?;
        files.push((entry.metadata()?.modified()?, entry.into_path()));
    }
    files.sort();
    let surplus = files.len().saturating_sub(CACHED_CAP);
    for (_, path) in &files[..surplus] {
        std::fs::remove_file(path).with_context(|| format!("removing {path}"))?;
    }
    Ok(())
}

/// Makes a component of a module that carries its world in a custom section.
fn componentize(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    ComponentEncoder::default().validate(true).module(module)?.encode()
}

/// The version of an installed Debian package.
fn installed_version(package: &str) -> Option<String> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status} ${Version}", package])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.strip_prefix("installed ").map(|version| version.trim().to_owned())
}

/// A program that a Debian package put somewhere.
fn program(package: &str, name: &str) -> anyhow::Result<Utf8PathBuf> {
    let files = shell::read(Command::new("dpkg").args(["-L", package]))?;
    // Debian also ships a wrapper script of that name, in another folder.
    let path = format!("/usr/bin/{name}");
    files
        .lines()
        .find(|line| *line == path)
        .map(Utf8PathBuf::from)
        .with_context(|| format!("the package {package} has no {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_made_anew_when_a_source_changes_and_not_for_what_cargo_made() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        let hash = || {
            let mut hasher = DefaultHasher::new();
            hash_tree(root, Utf8Path::new("guest"), &mut hasher).unwrap();
            hasher.finish()
        };
        std::fs::create_dir_all(root.join("guest/src")).unwrap();
        std::fs::write(root.join("guest/src/lib.rs"), "one").unwrap();
        let before = hash();
        std::fs::create_dir(root.join("guest/target")).unwrap();
        std::fs::write(root.join("guest/target/made"), "by cargo").unwrap();
        assert_eq!(hash(), before);
        std::fs::write(root.join("guest/src/lib.rs"), "two").unwrap();
        let after = hash();
        assert_ne!(after, before);
        std::fs::rename(root.join("guest/src/lib.rs"), root.join("guest/src/main.rs")).unwrap();
        assert_ne!(hash(), after, "names count");
    }
}
