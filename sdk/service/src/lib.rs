//! The shell of every long-running Lockstep program: clock, tracing, tasks, two-stage shutdown. Decides nothing.

mod chain;
mod clock;
mod shutdown;
mod telemetry;

pub use chain::chain;
pub use clock::Clock;
pub use shutdown::{Shutdown, Stage};
pub use telemetry::{LogFormat, TelemetryError, init_telemetry};
