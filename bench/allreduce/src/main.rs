//! Our side of `cargo xtask bench allreduce`: two ranks that do nothing but the collective, timed on
//! request. With `--limit` the same two processes show what the machine itself can do.
//! Cases and protocol are described in bench/README.md.

mod case;
mod limit;
mod rank;

use clap::{Parser, Subcommand};
use lockstep_bench_ranks::{RankArguments, Ranks, answer_commands};

use case::Case;

/// Times one collective between two ranks; commands come on standard input.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The case, by its name in bench/README.md.
    #[arg(long)]
    case: String,
    /// Threads of each rank that compute: none does while the other waits.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Instead of the collective: the least that the machine needs to move the same bytes.
    #[arg(long)]
    limit: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// One rank; started by this program itself.
    #[command(hide = true)]
    Rank(RankArguments),
}

fn main() -> anyhow::Result<()> {
    let Arguments { case: name, threads, limit, part } = Arguments::parse();
    let case = Case::named(&name)?;
    if let Some(Part::Rank(arguments)) = part {
        return rank::run(case, &arguments, limit, threads as usize);
    }
    let arguments = ["--case", &name, "--threads", &threads.to_string()].map(str::to_owned);
    let limit_argument = limit.then(|| "--limit".to_owned());
    let arguments: Vec<String> = arguments.into_iter().chain(limit_argument).collect();
    let mut ranks = Ranks::start(&case.nodes(), &arguments)?;
    let program = match limit {
        true => "this machine",
        false => concat!("lockstep ", env!("CARGO_PKG_VERSION")),
    };
    answer_commands(&name, threads, program, |calls| ranks.measure(calls))?;
    ranks.end()
}
