//! Measures whole services: a table for people, and with `--json` one object on the last line.

mod chaos;
mod checkpoint;
mod launch;
mod peer;
mod recover;
mod report;

use camino::Utf8PathBuf;
use clap::{Parser, Subcommand};
use lockstep_e2e::repository;

use crate::peer::Peer;

/// Benchmarks of whole services.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// From submitting a job to its first optimizer step, on a warm agent.
    Launch {
        /// Jobs that are measured.
        #[arg(long, default_value_t = 20)]
        runs: u32,
        /// End with one JSON object on a line of its own.
        #[arg(long)]
        json: bool,
    },
    /// From a failure to its verdict and to the next step.
    Recover {
        /// Ranks that are killed, ranks that are frozen, and nodes that are lost: so many of each.
        #[arg(long, default_value_t = 10)]
        runs: u32,
        /// A Python that has PyTorch: the same is done to ranks of torchrun, in turn with ours.
        #[arg(long, value_name = "PYTHON")]
        peer: Option<Utf8PathBuf>,
        /// End with one JSON object on a line of its own.
        #[arg(long)]
        json: bool,
    },
    /// What an asynchronous checkpoint of a GPT costs the ranks.
    Checkpoint {
        /// Checkpoints that are measured.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
        runs: u32,
        /// End with one JSON object on a line of its own.
        #[arg(long)]
        json: bool,
    },
    /// Jobs that are hit by drawn faults.
    Chaos {
        /// Faults, one a job.
        #[arg(long, default_value_t = 200)]
        count: u32,
        /// The same seed draws the same faults.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Launch { runs, json } => launch::launch(runs, json).await,
        Bench::Recover { runs, peer, json } => {
            let script = repository().join("bench/peer/recover.py");
            let peer = peer.map(|python| Peer { python, script });
            recover::recover(runs, peer.as_ref(), json).await
        }
        Bench::Checkpoint { runs, json } => checkpoint::checkpoint(runs, json).await,
        Bench::Chaos { count, seed } => chaos::chaos(count, seed).await,
    }
}
