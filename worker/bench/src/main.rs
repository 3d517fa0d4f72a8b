//! Our side of `cargo xtask bench step`: trains one model and nothing else, and times its steps on request.
//! Cases and protocol are described in bench/README.md.

mod case;

use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Parser;
use lockstep_api::RANK_ENVIRONMENT;
use serde::{Deserialize, Serialize};

use case::Case;

/// Steps before the first that counts.
const WARM_UP_STEPS: u32 = 3;

/// Times training steps of one model; commands come on standard input.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The case, by its name in bench/README.md.
    #[arg(long)]
    case: String,
    /// Compute threads.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
}

#[derive(Debug, Serialize)]
struct Hello<'a> {
    case: &'a str,
    threads: u32,
    name: &'a str,
}

#[derive(Debug, Deserialize)]
struct Measure {
    case: String,
    threads: u32,
    rounds: u32,
}

#[derive(Debug, Serialize)]
struct Measured<'a> {
    case: &'a str,
    ms: Vec<f64>,
    peak_rss_mib: f64,
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
    let Arguments { case: name, threads } = Arguments::parse();
    as_a_rank()?;
    let mut case = Case::new(&name, threads as usize)?;
    for _ in 0..WARM_UP_STEPS {
        case.step()?;
    }
    let program = concat!("lockstep ", env!("CARGO_PKG_VERSION"));
    say(&Hello { case: &name, threads, name: program })?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("reading commands")?;
        let command: Measure =
            serde_json::from_str(&line).with_context(|| format!("the command {line:?}"))?;
        if (command.case.as_str(), command.threads) != (name.as_str(), threads) {
            bail!("this process measures {name} on {threads} threads, not {line}");
        }
        let mut ms = Vec::with_capacity(command.rounds as usize);
        for _ in 0..command.rounds {
            let began = Instant::now();
            case.step()?;
            ms.push(began.elapsed().as_secs_f64() * 1e3);
        }
        say(&Measured { case: &name, ms, peak_rss_mib: peak_rss_mib()? })?;
    }
    Ok(())
}

fn say(answer: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush().context("answering")
}

/// The greatest resident size so far, as the kernel counts it.
fn peak_rss_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading own status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib =
        line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    Ok(kib.context("own status has a peak of memory")? / 1024.0)
}
