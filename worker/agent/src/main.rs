//! Binary `lockstep-agent`.

use clap::Parser as _;
use lockstep_agent::Config;
use lockstep_service::init_telemetry;

fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    init_telemetry(&config.log, config.log_format())?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(lockstep_agent::run(config))
}
