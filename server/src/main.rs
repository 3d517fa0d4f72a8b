//! Settings, telemetry, then the work. No logic.

use std::io::Write as _;

use anyhow::Context as _;
use clap::Parser as _;
use lockstep_server::config::{Cli, Command};
use lockstep_server::{init, openapi, serve};
use lockstep_service::{LogFormat, init_telemetry};

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let format = if cli.log_json { LogFormat::Json } else { LogFormat::Text };
    init_telemetry(&cli.log, format)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    match cli.command {
        Command::Serve(args) => runtime.block_on(serve::serve(args)),
        Command::Init(args) => {
            let credentials = runtime.block_on(init::init(&args))?;
            print(&format!("{}\n", serde_json::to_string(&credentials)?))
        }
        Command::Openapi => print(&openapi::document()?),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes()).context("writing to standard output")
}
