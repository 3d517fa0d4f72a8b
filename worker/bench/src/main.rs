//! Our side of `cargo xtask bench step` and `bench ddp`: trains one model and nothing else, and times its
//! steps on request. Cases and protocol are described in bench/README.md.

mod case;
mod gradients;

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use lockstep_api::RANK_ENVIRONMENT;
use lockstep_bench_ranks::{
    RankArguments, Ranks, answer_commands, milliseconds, peak_rss_mib, serve, take_core,
};

use case::Case;
use gradients::Gradients;

/// Steps before the first that counts.
const WARM_UP_STEPS: u32 = 3;

/// Times training steps of one model; commands come on standard input.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The case, by its name in bench/README.md.
    #[arg(long)]
    case: String,
    /// Compute threads of each rank.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// So many processes that train one model together, each on a batch of its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=8))]
    ranks: Option<u32>,
    /// With `--ranks`: each trains for itself.
    #[arg(long)]
    apart: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// One rank; started by this program itself.
    #[command(hide = true)]
    Rank(RankArguments),
}

/// Goes on in the environment that an agent gives its ranks: it is read when a program starts.
fn as_a_rank() -> anyhow::Result<()> {
    let is_there =
        |(name, value): &(&str, &str)| std::env::vars_os().any(|(n, v)| n == *name && v == *value);
    if RANK_ENVIRONMENT.iter().all(is_there) {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe().context("finding this program")?);
    Err(again.args(std::env::args_os().skip(1)).envs(RANK_ENVIRONMENT).exec())
        .context("starting this program again")
}

fn main() -> anyhow::Result<()> {
    let Arguments { case: name, threads, ranks, apart, part } = Arguments::parse();
    as_a_rank()?;
    if let Some(Part::Rank(arguments)) = part {
        return train(&name, threads as usize, &arguments, apart);
    }
    let program = concat!("lockstep ", env!("CARGO_PKG_VERSION"));
    if let Some(ranks) = ranks {
        let arguments = ["--case", &name, "--threads", &threads.to_string()].map(str::to_owned);
        let apart = apart.then(|| "--apart".to_owned());
        let arguments: Vec<String> = arguments.into_iter().chain(apart).collect();
        let mut ranks = Ranks::start(&[ranks as usize], &arguments)?;
        answer_commands(&name, threads, program, |rounds| ranks.measure(rounds))?;
        return ranks.end();
    }
    let mut case = Case::new(&name, threads as usize, Gradients::own)?;
    times(&mut case, WARM_UP_STEPS)?;
    answer_commands(&name, threads, program, |rounds| {
        Ok((times(&mut case, rounds)?, peak_rss_mib()?))
    })
}

/// One rank of several.
fn train(name: &str, threads: usize, arguments: &RankArguments, apart: bool) -> anyhow::Result<()> {
    take_core(arguments.rank, arguments.world())?;
    let mut case = Case::new(name, threads, |layout| match apart {
        true => Gradients::own(layout),
        false => Gradients::reduced(layout, arguments, threads),
    })?;
    serve(WARM_UP_STEPS, |rounds| Ok(vec![times(&mut case, rounds)?]))
}

/// Milliseconds of each of so many steps.
fn times(case: &mut Case, steps: u32) -> anyhow::Result<Vec<f64>> {
    let timed = |_| {
        let began = Instant::now();
        case.step()?;
        Ok(milliseconds(began))
    };
    (0..steps).map(timed).collect()
}
