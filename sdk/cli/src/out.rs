//! All printing. Data to standard output, talk to standard error; a reader that went away is no error.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

/// How often a spinner turns.
const SPINNER_TICK: Duration = Duration::from_millis(100);

/// Standard output has been closed by whoever read it.
static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

/// Where words go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    json: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the caller wants JSON.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// One line of data.
    pub(crate) fn line(self, text: &str) {
        // A closed pipe (`lockstep ps | head`) ends the reader's interest, not our work.
        if writeln!(std::io::stdout().lock(), "{text}").is_err() {
            READER_IS_GONE.store(true, Ordering::Relaxed);
        }
    }

    /// Whether nobody reads data any more: what only prints has nothing left to do.
    pub(crate) fn is_unread(self) -> bool {
        READER_IS_GONE.load(Ordering::Relaxed)
    }

    /// A piece of a text, shown at once. Whether anybody still reads.
    pub(crate) fn piece(self, text: &str) -> bool {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
    }

    /// One JSON document, on one line.
    pub(crate) fn json(self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string(value)?);
        Ok(())
    }

    /// JSON if asked for, else whatever `text` makes of it.
    pub(crate) fn data<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            return self.json(value);
        }
        let text = text(value);
        if !text.is_empty() {
            self.line(text.trim_end_matches('\n'));
        }
        Ok(())
    }

    /// One line of talk.
    pub(crate) fn note(self, text: &str) {
        drop(writeln!(std::io::stderr().lock(), "{text}"));
    }

    /// An error with all its causes.
    pub(crate) fn error(self, error: &anyhow::Error) {
        self.note(&format!("lockstep: {}", describe(error)));
    }

    /// Whether someone looks at standard error.
    pub(crate) fn is_watched(self) -> bool {
        std::io::stderr().is_terminal()
    }

    /// A spinner with a text while something takes long; nothing where nobody looks.
    pub(crate) fn spinner(self, text: String) -> ProgressBar {
        if !self.is_watched() {
            return ProgressBar::hidden();
        }
        let spinner = ProgressBar::new_spinner().with_message(text);
        spinner.enable_steady_tick(SPINNER_TICK);
        spinner
    }

    /// A bar of steps; its message is set by whoever moves it.
    pub(crate) fn steps_bar(self, name: String) -> ProgressBar {
        let bar = ProgressBar::new(0).with_prefix(name);
        let template =
            "{prefix} [{bar:30}] {human_pos}/{human_len} steps · {rate} · {eta} left · {msg}";
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.set_style(style.progress_chars("=> ").with_key("rate", write_rate)),
            Err(error) => self.note(&format!("progress template: {error}")),
        }
        bar.enable_steady_tick(SPINNER_TICK);
        bar
    }
}

fn write_rate(state: &ProgressState, to: &mut dyn std::fmt::Write) {
    let written = write!(to, "{:.1}/s", state.per_sec());
    debug_assert!(written.is_ok(), "the bar's buffer takes everything");
}

/// An error and its causes in one line, each said once.
fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// A table without lines: it can be cut by columns.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}

/// A number with as many digits as people read.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || (1e-3..1e6).contains(&value.abs()) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// Bytes for people.
pub(crate) fn bytes(count: i64) -> String {
    indicatif::BinaryBytes(u64::try_from(count).unwrap_or(0)).to_string()
}

/// What may be absent.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn causes_are_told_once_each() {
        let error: anyhow::Result<()> = Err(anyhow::anyhow!("no such file"));
        let error = error.context("reading job.toml").unwrap_err();
        assert_eq!(describe(&error), "reading job.toml: no such file");
        let twice: anyhow::Result<()> = Err(anyhow::anyhow!("gone"));
        assert_eq!(describe(&twice.context("it is gone").unwrap_err()), "it is gone");
    }

    #[test]
    fn numbers_keep_four_digits_or_go_scientific() {
        assert_eq!(number(0.971_23), "0.9712");
        assert_eq!(number(0.0), "0.0000");
        assert_eq!(number(1.5e-7), "1.500e-7");
        assert_eq!(number(f64::NAN), "NaN");
    }
}
