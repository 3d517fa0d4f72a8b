//! The host's side of the interfaces, one file each.

pub(crate) mod batch;
pub(crate) mod dataset;
pub(crate) mod graph;
pub(crate) mod log;

use wasmtime::component::ResourceTable;

use crate::bindings::types;
use crate::error::{GuestError, GuestErrorKind};
use crate::limits::{HANDLES_CAP, Limiter, Limits};

/// What one store holds: the host's half of a guest.
pub(crate) struct GuestState {
    /// The call that is going on, for messages.
    pub(crate) what: &'static str,
    pub(crate) limits: Limits,
    pub(crate) limiter: Limiter,
    pub(crate) handles: ResourceTable,
    pub(crate) log: log::Log,
    pub(crate) dataset: dataset::Dataset,
    /// The batch being filled; `None` outside of `loader.load`.
    pub(crate) batch: Option<batch::BatchBuilder>,
    /// The expression being recorded; `None` outside of `loss.build`.
    pub(crate) graph: Option<graph::Graph>,
}

impl GuestState {
    pub(crate) fn new(limits: Limits, log: log::LogSink) -> Self {
        let mut handles = ResourceTable::new();
        handles.set_max_capacity(HANDLES_CAP);
        Self {
            what: "instantiate",
            limits,
            limiter: Limiter::new(&limits),
            handles,
            log: log::Log::new(log),
            dataset: dataset::Dataset::default(),
            batch: None,
            graph: None,
        }
    }
}

impl types::Host for GuestState {}

/// The guest's own error, told to whoever called it.
pub(crate) fn guest_error(what: &str, error: types::Error) -> GuestError {
    let (kind, sample, message) = match error {
        types::Error::Config(message) => (GuestErrorKind::Config, None, message),
        types::Error::Data(message) => (GuestErrorKind::Data, None, message),
        types::Error::Sample((index, message)) => (GuestErrorKind::Sample, Some(index), message),
        types::Error::Internal(message) => (GuestErrorKind::Internal, None, message),
    };
    let message = log::cut(message);
    GuestError::Guest { what: what.to_owned(), kind, sample, message }
}

/// Names of tensors and metrics: 1 to 64 of `a-z A-Z 0-9 _ . -`.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-'))
}

/// Refuses a name that no tensor or metric may have.
pub(crate) fn check_name(what: &str, subject: &str, name: &str) -> Result<(), GuestError> {
    if is_name(name) {
        return Ok(());
    }
    Err(GuestError::Shape {
        what: what.to_owned(),
        subject: subject.to_owned(),
        expected: "1 to 64 characters of a-z A-Z 0-9 _ . -".to_owned(),
        got: format!("{:?}", log::cut_to(name.to_owned(), 80)),
    })
}
