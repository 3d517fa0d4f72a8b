//! `cargo xtask chaos`: jobs that are hit by drawn faults; fails if any of them is named wrongly, loses or repeats a sample,
//! leaves a process or ends with other weights.

use std::process::Command;

use camino::Utf8Path;
use clap::Args;

use crate::session::{self, Profile};
use crate::{setup, shell};

/// Settings of `cargo xtask chaos`.
#[derive(Args)]
pub(crate) struct Chaos {
    /// Faults, one a job.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// The same seed draws the same faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Chaos {
    /// Sets up what is missing, builds, hits the jobs.
    pub(crate) fn run(&self, root: &Utf8Path) -> anyhow::Result<()> {
        setup::run(root)?;
        let programs = session::build(root, Profile::Debug)?;
        let mut chaos = Command::new(programs.join("lockstep-bench"));
        chaos.current_dir(root).arg("chaos");
        chaos.args(["--count", &self.count.to_string(), "--seed", &self.seed.to_string()]);
        shell::run(&mut chaos)
    }
}
