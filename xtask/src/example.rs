//! `cargo xtask example NAME`: fetches an example's data, trains it like the demo, shows what came of it.

mod data;

use camino::Utf8Path;
use clap::{Args, ValueEnum};

use crate::session::{Profile, Session, Settings};
use crate::{out, shell};

/// Settings of `cargo xtask example`.
#[derive(Args)]
pub(crate) struct Example {
    /// What to train.
    name: Name,
    #[command(flatten)]
    settings: Settings,
}

/// Examples with data that is not in the repository.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Name {
    /// Pictures of clothes and a convolutional network.
    Fashion,
    /// A text and a GPT that spells.
    Text,
}

impl Example {
    /// Fetches the data, sets up what is missing, builds, runs the job.
    pub(crate) fn run(&self, root: &Utf8Path) -> anyhow::Result<()> {
        data::prepare(root, self.name)?;
        let session = Session::start(root, &self.settings, Profile::Release)?;
        let (job, measures): (_, &[&str]) = match self.name {
            Name::Fashion => ("examples/fashion/job.toml", &["loss", "accuracy"]),
            Name::Text => ("examples/text/job.toml", &["loss", "perplexity"]),
        };
        session.train(root, job)?;
        let results = session.results()?;
        let sample = match self.name {
            Name::Fashion => None,
            Name::Text => Some(sample(&session, &results.job)?),
        };
        session.end()?;
        results.say(measures)?;
        if let Some(sample) = sample {
            out::say(&format!("sample:\n{sample}"));
        }
        Ok(())
    }
}

/// The pictures' data, which an end-to-end test trains on as well.
pub(crate) fn fetch_fashion(root: &Utf8Path) -> anyhow::Result<()> {
    data::prepare(root, Name::Fashion)
}

/// Text from the job's newest checkpoint. The one place that knows the verb's arguments.
fn sample(session: &Session, job: &str) -> anyhow::Result<String> {
    shell::read(session.lockstep()?.args(["sample", job]))
}
