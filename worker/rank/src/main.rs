//! `lockstep-rank train` is started by an agent, `check` by the server, `sample` by `lockstep sample`. None is for people.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use lockstep_api::{CheckRequest, RankConfig, SampleEvent, SampleRequest};
use serde::de::DeserializeOwned;

/// A configuration holds a job, which the server bounds far below this.
const INPUT_BYTES_CAP: u64 = 16 << 20;

/// One rank's process: the training loop, the check at submit, text from a language model.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Which of its own log lines are written to standard error.
    #[arg(long, env = "LOCKSTEP_LOG", default_value = "warn", global = true)]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains as one rank; reads a rank configuration from standard input.
    Train,
    /// Checks a job; reads a check request from standard input, writes a check response to standard output.
    Check,
    /// Goes on with a text; reads a sample request from standard input, writes sample events to standard output, one a line.
    Sample,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    lockstep_service::init_telemetry(&arguments.log, lockstep_service::LogFormat::Text)?;
    match arguments.command {
        Command::Train => {
            let config: RankConfig = read_input().context("reading the rank configuration")?;
            Ok(ExitCode::from(lockstep_rank::run(&config)?))
        }
        Command::Check => {
            let request: CheckRequest = read_input().context("reading the check request")?;
            let response = lockstep_rank::check::check(&request);
            serde_json::to_writer(io::stdout().lock(), &response).context("writing the answer")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Sample => {
            let request: SampleRequest = read_input().context("reading the sample request")?;
            // Each event at once: whoever reads shows it as it comes. When nobody reads any more, this fails and ends us.
            let tell = |event: &SampleEvent| {
                let mut out = io::stdout().lock();
                serde_json::to_writer(&mut out, event)?;
                out.write_all(b"\n")?;
                out.flush()
            };
            lockstep_rank::sample(&request, tell).context("writing what was made")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read_input<T: DeserializeOwned>() -> anyhow::Result<T> {
    let mut text = Vec::new();
    io::stdin().lock().take(INPUT_BYTES_CAP).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
