//! The lockstep command line: arguments in, calls of [`lockstep_client`], words out.
//!
//! Data goes to standard output, talk to standard error. `--json` on every verb. Exit codes are in `failure.rs`.

mod args;
mod failure;
mod follow;
mod job_file;
mod out;
mod programs;
mod settings;
mod trace;
mod up;
mod upload;
mod verbs;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Verb};
use crate::failure::exit_code;
use crate::out::Out;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let out = Out::new(cli.global.json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            out.error(&anyhow::Error::new(error).context("starting the runtime"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli, out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out.error(&error);
            if failure::is_unreachable(&error) {
                out.note("is the server running? `lockstep up` starts one on this machine");
            }
            if failure::is_unauthenticated(&error) {
                out.note("the token sent is that of --token, else LOCKSTEP_TOKEN, else the profile; the server does not take it");
            }
            exit_code(&error)
        }
    }
}

async fn run(cli: Cli, out: Out) -> anyhow::Result<()> {
    let global = &cli.global;
    match cli.verb {
        Verb::Up(args) => up::up(global, args, out).await,
        Verb::Submit(args) => verbs::submit::submit(global, args, out).await,
        Verb::Run(args) => verbs::submit::run(global, args, out).await,
        Verb::Ps(args) => verbs::jobs::ps(global, args, out).await,
        Verb::Show(args) => verbs::jobs::show(global, args, out).await,
        Verb::Cancel(args) => verbs::jobs::cancel(global, args, out).await,
        Verb::Pause(args) => verbs::jobs::pause(global, args, out).await,
        Verb::Resume(args) => verbs::jobs::resume(global, args, out).await,
        Verb::Logs(args) => verbs::logs::logs(global, args, out).await,
        Verb::Ranks(args) => verbs::ranks::ranks(global, args, out).await,
        Verb::Trace(args) => verbs::trace::trace(global, args, out).await,
        Verb::Checkpoint(verb) => verbs::checkpoints::run(global, verb, out).await,
        Verb::Sample(args) => verbs::sample::sample(global, args, out).await,
        Verb::Nodes => verbs::nodes::nodes(global, out).await,
        Verb::Node(verb) => verbs::nodes::node(global, verb, out).await,
        Verb::Token(verb) => verbs::tokens::token(global, verb, out).await,
        Verb::JoinToken(verb) => verbs::tokens::join_token(global, verb, out).await,
        Verb::Whoami => verbs::tokens::whoami(global, out).await,
    }
}
