//! Log lines on standard error, as text or JSON, filtered like `info,lockstep_server=debug`.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("log filter {filter:?} is not of the form level,target=level")]
    Filter {
        /// As given.
        filter: String,
        /// Why.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Called twice.
    #[error("logging is already set up")]
    Installed(#[from] TryInitError),
}

/// Sends `tracing` to standard error. Call once, first thing in `main`.
///
/// # Errors
/// A filter that does not parse; a second call.
pub fn init_telemetry(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => {
            registry.with(fmt::layer().with_writer(std::io::stderr).with_ansi(false)).try_init()?
        }
        LogFormat::Json => {
            registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init()?;
        }
    }
    Ok(())
}
