//! `cargo xtask bench NAME`: builds in release, runs the measuring program, passes its table and JSON on.

use std::process::Command;

use camino::Utf8Path;
use clap::{Args, ValueEnum};

use crate::{demo, setup, shell};

/// Settings of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Bench {
    /// What to measure.
    name: Name,
    /// End with one JSON object on a line of its own.
    #[arg(long)]
    json: bool,
    /// How many measured runs.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// From submitting a job to its first optimizer step, on a warm agent.
    Launch,
}

impl Bench {
    /// Builds, measures.
    pub(crate) fn run(&self, root: &Utf8Path) -> anyhow::Result<()> {
        setup::run(root)?;
        let programs = demo::build(root, true)?;
        let name = match self.name {
            Name::Launch => "launch",
        };
        let mut measure = Command::new(programs.join("lockstep-bench"));
        measure.current_dir(root).args([name, "--runs", &self.runs.to_string()]);
        if self.json {
            measure.arg("--json");
        }
        shell::run(&mut measure)
    }
}
