//! What can go wrong: with a component before it runs ([`SandboxError`]), and while it runs ([`GuestError`]).

use std::time::Duration;

use camino::Utf8PathBuf;

use crate::World;

/// A component cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// wasmtime refuses its own settings: this machine cannot run guests.
    #[error("cannot make an engine for guests: {message}")]
    Engine {
        /// What wasmtime says.
        message: String,
    },
    /// A component file cannot be read.
    #[error("cannot read the component {path}")]
    Read {
        /// Which.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A component file is too large.
    #[error("the component has {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The ceiling.
        limit: u64,
    },
    /// The bytes are no valid component, or use a feature that is off.
    #[error("no valid WebAssembly component: {message}")]
    Invalid {
        /// What wasmtime says.
        message: String,
    },
    /// It wants something that its kind of guest does not get.
    #[error("the {world} imports {import:?}; allowed are {allowed:?}")]
    UnknownImport {
        /// The kind of guest, by its exports.
        world: World,
        /// What it wants.
        import: String,
        /// What it may have.
        allowed: &'static [&'static str],
    },
    /// Its exports are not those of one kind of guest.
    #[error("the component exports {found:?}, expected exactly one of {expected:?}")]
    NoWorld {
        /// Its exports.
        found: Vec<String>,
        /// What would make it a guest.
        expected: Vec<&'static str>,
    },
    /// An import or export has the right name and the wrong type.
    #[error("the component does not fit the {world}: {message}")]
    Mismatch {
        /// The kind of guest, by its exports.
        world: World,
        /// What wasmtime says: names the function and the difference.
        message: String,
    },
    /// The folder of compiled components cannot be used.
    #[error("cannot use the folder of compiled components {path}: {message}")]
    Cache {
        /// Which folder.
        path: Utf8PathBuf,
        /// Why.
        message: String,
    },
}

/// Why a guest answered with an error of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestErrorKind {
    /// The job's config is not what it expects.
    Config,
    /// The dataset is not what it expects.
    Data,
    /// One sample is unusable.
    Sample,
    /// Anything else.
    Internal,
}

/// A guest did not do what it was asked to. `what` is the call, as in `loader.load`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GuestError {
    /// It trapped: a panic, an access out of bounds, a wrong call of the host.
    #[error("{what} trapped: {message}")]
    Trap {
        /// The call.
        what: String,
        /// Its last words if there were any, otherwise the kind of trap and the function.
        message: String,
    },
    /// It ran past its time.
    #[error("{what} ran past its limit of {limit:?}")]
    TimeLimit {
        /// The call.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// It asked for more memory than it may have.
    #[error("{what} asked for {asked} bytes of memory, the limit is {limit}")]
    MemoryLimit {
        /// The call.
        what: String,
        /// Bytes of linear memory it would have had.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// Its stack overflowed.
    #[error("the stack overflowed in {what}")]
    StackOverflow {
        /// The call.
        what: String,
    },
    /// It put out more than it may.
    #[error("{what} put out {what_bytes}, the limit is {limit} bytes", what_bytes = match asked {
        Some(asked) => format!("{asked} bytes"),
        None => "too many bytes at once".to_owned(),
    })]
    OutputLimit {
        /// The call.
        what: String,
        /// Bytes so far, with those refused. `None`: refused before they were counted.
        asked: Option<u64>,
        /// The limit.
        limit: u64,
    },
    /// A tensor, name or number of things is not what is needed.
    #[error("{what}: {subject} is {got}, expected {expected}")]
    Shape {
        /// The call.
        what: String,
        /// What is wrong: `tensor "x"`, `the metric's name`.
        subject: String,
        /// What would be right.
        expected: String,
        /// What it is.
        got: String,
    },
    /// An operation of the graph does not fit its inputs.
    #[error("{what}: {message}")]
    Operation {
        /// The call.
        what: String,
        /// Names the operation, the shapes and the rule.
        message: String,
    },
    /// A number is not finite.
    #[error("{what}: {subject} is {value}")]
    NonFinite {
        /// The call.
        what: String,
        /// Which number.
        subject: String,
        /// Infinite or NaN, as text.
        value: String,
    },
    /// It answered with an error of its own.
    #[error("{what} failed ({kind:?}{}): {message}", sample.map(|s| format!(" {s}")).unwrap_or_default())]
    Guest {
        /// The call.
        what: String,
        /// Kind of error.
        kind: GuestErrorKind,
        /// The unusable sample, for [`GuestErrorKind::Sample`].
        sample: Option<u64>,
        /// The guest's words.
        message: String,
    },
    /// The host's own fault: a dataset file that cannot be read, a guest used after its trap.
    #[error("{0}")]
    Host(String),
}
