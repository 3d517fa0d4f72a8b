//! Every test of the project: Rust over a real Postgres, the web page, the page in a real browser.

use camino::Utf8Path;
use clap::Args;

use crate::database::Throwaway;
use crate::{example, session, setup, shell};

/// Settings of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Test {
    /// Only Rust tests whose name contains this, and none of the web page.
    filter: Option<String>,
}

impl Test {
    /// Sets up what is missing, then runs the tests.
    pub(crate) fn run(&self, root: &Utf8Path) -> anyhow::Result<()> {
        setup::run(root)?;
        example::fetch_fashion(root)?;
        self.rust(root)?;
        if self.filter.is_some() {
            return Ok(());
        }
        shell::run(&mut shell::npm(root, &["run", "--silent", "check"]))?;
        shell::run(&mut shell::npm(root, &["run", "--silent", "test"]))?;
        browser(root)
    }

    fn rust(&self, root: &Utf8Path) -> anyhow::Result<()> {
        // The end-to-end tests start every program; cargo builds only those of the crate under test by itself.
        shell::run(&mut session::build_for_tests(root))?;
        let database = Throwaway::start()?;
        let mut tests = shell::cargo(root);
        if shell::has("cargo-nextest") {
            tests.args(["nextest", "run", "--locked", "--workspace"]);
            tests.args(self.filter.iter());
        } else {
            tests.args(["test", "--locked", "--workspace"]);
            if let Some(filter) = &self.filter {
                tests.args(["--", filter]);
            }
        }
        tests.env("DATABASE_URL", database.url()).env("SQLX_OFFLINE", "true");
        tests.env("LOCKSTEP_PYTHON", setup::python()?);
        shell::run(&mut tests)
    }
}

/// The page against the real server, in headless Chromium.
fn browser(root: &Utf8Path) -> anyhow::Result<()> {
    let mut tests = shell::npm(root, &["run", "--silent", "e2e"]);
    tests.env("LOCKSTEP_BIN_DIR", shell::target_dir(root).join("debug"));
    shell::run(&mut tests)
}
