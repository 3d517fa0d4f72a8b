//! What the tests of guests share.
#![expect(dead_code, reason = "each test uses some of it")]

pub(crate) mod operations;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_sandbox::{GuestComponent, Limits, LogLevel, LogSink, Sandbox};

pub(crate) const LIMITS: Limits =
    Limits { memory_bytes: 64 << 20, call_time: Duration::from_secs(10), output_bytes: 8 << 20 };

pub(crate) const EXAMPLE: &str = "examples/digits";
pub(crate) const TEST_GUESTS: &str = "worker/sandbox/tests/guests";

pub(crate) fn repository() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A component that `cargo xtask setup` built.
pub(crate) fn guest(sandbox: &Sandbox, folder: &str, name: &str) -> GuestComponent {
    let path = repository().join(folder).join(name);
    assert!(path.is_file(), "{folder}/{name} is missing: run `cargo xtask setup` first");
    sandbox.component(&path).unwrap()
}

pub(crate) fn quiet() -> LogSink {
    Arc::new(|_, _| {})
}

/// Lines that a guest wrote.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<(LogLevel, String)>>>);

impl Lines {
    pub(crate) fn sink(&self) -> LogSink {
        let lines = Arc::clone(&self.0);
        Arc::new(move |level, line| lines.lock().unwrap().push((level, line.to_owned())))
    }

    pub(crate) fn take(&self) -> Vec<(LogLevel, String)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}
