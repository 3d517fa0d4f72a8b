//! `cargo xtask demo`: from nothing to trained weights, through every real part.

use camino::Utf8Path;
use clap::Args;

use crate::session::{Profile, Session, Settings};

/// Settings of `cargo xtask demo`. The test loss is the same for any number of ranks.
#[derive(Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    settings: Settings,
    /// Build with optimisation.
    #[arg(long)]
    release: bool,
}

impl Demo {
    /// Sets up what is missing, builds, runs the job.
    pub(crate) fn run(&self, root: &Utf8Path) -> anyhow::Result<()> {
        let profile = if self.release { Profile::Release } else { Profile::Debug };
        let session = Session::start(root, &self.settings, profile)?;
        session.train(root, "examples/digits/job.toml")?;
        let results = session.results()?;
        session.end()?;
        results.say(&["loss", "accuracy"])
    }
}
