//! The one place that prints.

/// What the task is about: standard output.
#[expect(clippy::print_stdout, reason = "a task's result is for standard output")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// What the task is doing: standard error.
#[expect(clippy::print_stderr, reason = "progress is for standard error")]
pub(crate) fn note(line: &str) {
    eprintln!("xtask: {line}");
}
