//! `cargo xtask bench NAME`: builds in release and measures; a table for people, and with `--json` one object on the last line.

mod allreduce;
mod allreduce_cases;
mod cases;
mod ddp;
mod program;
mod report;
mod sides;
mod step;
mod step_row;

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand};

use crate::session::{self, Profile};
use crate::{setup, shell};

/// Settings of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Bench {
    /// What to measure.
    #[command(subcommand)]
    name: Name,
}

#[derive(Subcommand)]
enum Name {
    /// From submitting a job to its first optimizer step, on a warm agent.
    Launch(Launch),
    /// One collective between two ranks, against the machine's own limit.
    Allreduce(allreduce::Allreduce),
    /// From a failure (a killed or frozen rank, a lost node) to its verdict and to the next step.
    Recover(Recover),
    /// An asynchronous checkpoint of a GPT: how long it holds the ranks, against a step.
    Checkpoint(Checkpoint),
    /// One training step of two ranks, against PyTorch's data parallel.
    Ddp(ddp::Ddp),
    /// One training step, forward to optimizer, of the models in bench/README.md.
    Step(step::Step),
}

/// Settings of `cargo xtask bench launch`.
#[derive(Args)]
struct Launch {
    /// End with one JSON object on a line of its own.
    #[arg(long)]
    json: bool,
    /// How many measured runs.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
}

/// Settings of `cargo xtask bench recover`.
#[derive(Args)]
struct Recover {
    /// End with one JSON object on a line of its own.
    #[arg(long)]
    json: bool,
    /// Ranks that are killed, ranks that are frozen, and nodes that are lost: so many of each.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// A Python that has PyTorch: the same is done to ranks of torchrun, in turn with ours.
    #[arg(long, value_name = "PYTHON")]
    peer: Option<Utf8PathBuf>,
}

/// Settings of `cargo xtask bench checkpoint`.
#[derive(Args)]
struct Checkpoint {
    /// End with one JSON object on a line of its own.
    #[arg(long)]
    json: bool,
    /// How many measured checkpoints.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
}

impl Bench {
    /// Builds, measures.
    pub(crate) fn run(&self, root: &Utf8Path) -> anyhow::Result<()> {
        // Measuring ranks needs neither web page nor guests.
        let only = |name| session::build_only(root, Profile::Release, name);
        let all = || {
            setup::run(root)?;
            session::build(root, Profile::Release)
        };
        match &self.name {
            Name::Launch(launch) => launch.run(root, &all()?),
            Name::Recover(recover) => recover.run(root, &all()?),
            Name::Checkpoint(checkpoint) => checkpoint.run(root, &all()?),
            Name::Step(step) => step.run(root, &all()?),
            Name::Allreduce(allreduce) => allreduce.run(root, &only(allreduce::PROGRAM)?),
            Name::Ddp(ddp) => ddp.run(root, &only(ddp::PROGRAM)?),
        }
    }
}

impl Launch {
    fn run(&self, root: &Utf8Path, programs: &Utf8Path) -> anyhow::Result<()> {
        measure(root, programs, &["launch"], (self.runs, self.json))
    }
}

impl Recover {
    fn run(&self, root: &Utf8Path, programs: &Utf8Path) -> anyhow::Result<()> {
        let peer = self.peer.iter().flat_map(|python| ["--peer", python.as_str()]);
        let arguments: Vec<&str> = std::iter::once("recover").chain(peer).collect();
        measure(root, programs, &arguments, (self.runs, self.json))
    }
}

impl Checkpoint {
    fn run(&self, root: &Utf8Path, programs: &Utf8Path) -> anyhow::Result<()> {
        measure(root, programs, &["checkpoint"], (self.runs, self.json))
    }
}

/// A benchmark of whole services.
fn measure(
    root: &Utf8Path,
    programs: &Utf8Path,
    arguments: &[&str],
    (runs, json): (u32, bool),
) -> anyhow::Result<()> {
    let mut measure = Command::new(programs.join("lockstep-bench"));
    measure.current_dir(root).args(arguments).args(["--runs", &runs.to_string()]);
    if json {
        measure.arg("--json");
    }
    shell::run(&mut measure)
}
