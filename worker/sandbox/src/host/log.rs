//! `log`: lines of a guest on their way to the job's log, limited in length and number.

use std::sync::Arc;

use super::GuestState;
use crate::bindings::log;

/// Weight of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For whoever debugs.
    Debug,
    /// Normal.
    Info,
    /// Odd, work goes on.
    Warn,
    /// Something failed.
    Error,
}

/// Where a guest's lines go.
pub type LogSink = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// Bytes of one line; the rest is cut off.
const LINE_BYTES_CAP: usize = 8 << 10;

/// Lines of one call; the rest is counted and dropped.
const CALL_LINES_CAP: u32 = 100;

/// Lines of one guest over its life.
const GUEST_LINES_CAP: u32 = 10_000;

pub(crate) struct Log {
    sink: LogSink,
    call_lines: u32,
    guest_lines: u32,
    /// The last line of level error in this call: if a trap follows, it says why.
    last_words: Option<String>,
}

impl Log {
    pub(crate) fn new(sink: LogSink) -> Self {
        Self { sink, call_lines: 0, guest_lines: 0, last_words: None }
    }

    pub(crate) fn begin_call(&mut self) {
        self.call_lines = 0;
        self.last_words = None;
    }

    pub(crate) fn last_words(&mut self) -> Option<String> {
        self.last_words.take()
    }

    fn write(&mut self, level: LogLevel, message: String) {
        let message = cut(message);
        if level == LogLevel::Error {
            self.last_words = Some(message.clone());
        }
        self.call_lines = self.call_lines.saturating_add(1);
        self.guest_lines = self.guest_lines.saturating_add(1);
        if self.call_lines <= CALL_LINES_CAP && self.guest_lines <= GUEST_LINES_CAP {
            (self.sink)(level, &message);
        } else if self.call_lines == CALL_LINES_CAP + 1 && self.guest_lines <= GUEST_LINES_CAP {
            (self.sink)(LogLevel::Warn, "further lines of this call are dropped");
        } else if self.guest_lines == GUEST_LINES_CAP + 1 {
            (self.sink)(LogLevel::Warn, "further lines of this guest are dropped");
        }
    }
}

impl log::Host for GuestState {
    fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Debug => LogLevel::Debug,
            log::Level::Info => LogLevel::Info,
            log::Level::Warn => LogLevel::Warn,
            log::Level::Error => LogLevel::Error,
        };
        self.log.write(level, message);
        Ok(())
    }
}

/// A guest's words, cut to the length of a line.
pub(crate) fn cut(text: String) -> String {
    cut_to(text, LINE_BYTES_CAP)
}

/// Cut at a character's border, with a mark.
pub(crate) fn cut_to(mut text: String, bytes: usize) -> String {
    if bytes < text.len() {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn long_lines_are_cut_and_too_many_are_dropped_with_one_notice() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&lines);
        let mut log = Log::new(Arc::new(move |_, line| seen.lock().unwrap().push(line.to_owned())));
        log.write(LogLevel::Info, "ü".repeat(LINE_BYTES_CAP));
        for _ in 0..CALL_LINES_CAP + 50 {
            log.write(LogLevel::Debug, "again".to_owned());
        }
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), CALL_LINES_CAP as usize + 1);
        assert!(lines[0].len() <= LINE_BYTES_CAP + '…'.len_utf8());
        assert_eq!(lines.last().unwrap(), "further lines of this call are dropped");
    }

    #[test]
    fn the_last_error_line_of_a_call_is_kept() {
        let mut log = Log::new(Arc::new(|_, _| {}));
        log.write(LogLevel::Error, "first".to_owned());
        log.write(LogLevel::Error, "second".to_owned());
        log.write(LogLevel::Info, "third".to_owned());
        assert_eq!(log.last_words().as_deref(), Some("second"));
        log.write(LogLevel::Error, "fourth".to_owned());
        log.begin_call();
        assert_eq!(log.last_words(), None);
    }
}
