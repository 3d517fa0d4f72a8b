//! A rank's standard error as lines of its job's log: cut where too long, counted where too many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lockstep_api::{LogLevel, LogSource, Rank, ReportedLine};
use lockstep_service::Clock;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Longest line of a job's log.
pub(crate) const MAX_LINE_BYTES: usize = 8 * 1024;
/// Lines that may come at once.
const BURST_LINES: f64 = 1000.0;
/// Lines a second that may come for ever.
const LINES_PER_SECOND: f64 = 200.0;
/// Lines kept to explain a bad end.
const LAST_WORDS: usize = 20;
/// Length of each of these.
const LAST_WORD_BYTES: usize = 400;

/// The last lines that a rank wrote.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastWords(Arc<Mutex<VecDeque<String>>>);

impl LastWords {
    /// Oldest first.
    pub(crate) fn take(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST_WORDS {
            lines.pop_front();
        }
        lines.push_back(cut(line, LAST_WORD_BYTES).to_owned());
    }
}

/// The longest beginning of `text` of at most `cap` bytes that ends between characters.
pub(crate) fn cut(text: &str, cap: usize) -> &str {
    &text[..text.floor_char_boundary(cap)]
}

/// Hands on lines until the rank closes its standard error. `rank`: which it is now; `clock` dates them, `now` measures their rate.
pub(crate) async fn pump(
    from: impl AsyncRead + Unpin,
    rank: impl Fn() -> Rank,
    clock: Clock,
    now: impl Fn() -> Instant,
    last_words: LastWords,
    lines: mpsc::Sender<ReportedLine>,
) {
    let mut reader = BufReader::new(from);
    let mut rate = Rate { tokens: BURST_LINES, at: now(), dropped: 0 };
    let line_of = |text: String, level| {
        let at = clock.now();
        ReportedLine { rank: Some(rank()), source: LogSource::Stderr, level, at, text }
    };
    loop {
        let text = match next_line(&mut reader).await {
            Ok(Some(text)) => text,
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(rank = %rank(), %error, "cannot read a rank's standard error");
                break;
            }
        };
        last_words.push(&text);
        if !rate.admits(now()) {
            continue;
        }
        if let Some(note) = rate.note()
            && lines.send(line_of(note, LogLevel::Warn)).await.is_err()
        {
            return;
        }
        if lines.send(line_of(text, LogLevel::Info)).await.is_err() {
            return;
        }
    }
    if let Some(note) = rate.note() {
        // The attempt is over: nobody is left to tell.
        drop(lines.send(line_of(note, LogLevel::Warn)).await);
    }
}

struct Rate {
    tokens: f64,
    at: Instant,
    dropped: u64,
}

impl Rate {
    fn admits(&mut self, now: Instant) -> bool {
        let earned = now.duration_since(self.at).as_secs_f64() * LINES_PER_SECOND;
        self.tokens = (self.tokens + earned).min(BURST_LINES);
        self.at = now;
        if self.tokens < 1.0 {
            self.dropped += 1;
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// A sentence about lines dropped since the last one.
    fn note(&mut self) -> Option<String> {
        let dropped = std::mem::take(&mut self.dropped);
        (0 < dropped)
            .then(|| format!("{dropped} lines were dropped: more than {LINES_PER_SECOND} a second"))
    }
}

/// The next line without its end; what is longer than [`MAX_LINE_BYTES`] is read and thrown away.
async fn next_line(
    reader: &mut BufReader<impl AsyncRead + Unpin>,
) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    loop {
        let bytes = reader.fill_buf().await?;
        if bytes.is_empty() {
            let rest = (!line.is_empty()).then(|| text_of(&line));
            return Ok(rest);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let room = MAX_LINE_BYTES.saturating_sub(line.len()).min(part.len());
        line.extend_from_slice(&part[..room]);
        let used = end.map_or(bytes.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            return Ok(Some(text_of(&line)));
        }
    }
}

fn text_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    // Postgres takes no NUL in a text; a replaced byte grows to three.
    let text = text.trim_end_matches('\r').replace('\0', "\u{fffd}");
    cut(&text, MAX_LINE_BYTES).to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What is handed on, and the last words, when everything comes in one moment.
    async fn pumped(text: Vec<u8>) -> (Vec<String>, Vec<String>) {
        let (sender, mut receiver) = mpsc::channel(100_000);
        let words = LastWords::default();
        let moment = Instant::now();
        pump(&text[..], || Rank(0), Clock::system(), || moment, words.clone(), sender).await;
        let mut lines = Vec::new();
        while let Some(line) = receiver.recv().await {
            lines.push(line.text);
        }
        (lines, words.take())
    }

    #[tokio::test]
    async fn lines_are_cut_at_the_limit_and_an_unfinished_last_one_counts() {
        let long = "x".repeat(3 * MAX_LINE_BYTES);
        let (lines, words) = pumped(format!("one\r\n\n{long}\nlast").into_bytes()).await;
        assert_eq!(lines, ["one", "", &long[..MAX_LINE_BYTES], "last"]);
        assert_eq!(words.last().unwrap(), "last");
        assert_eq!(words[2].len(), LAST_WORD_BYTES);
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_are_replaced() {
        let (lines, _) = pumped(b"a\xff\0b\n".to_vec()).await;
        assert_eq!(lines, ["a\u{fffd}\u{fffd}b"]);
    }

    #[tokio::test]
    async fn a_flood_is_counted_instead_of_handed_on() {
        let (lines, words) = pumped("x\n".repeat(5000).into_bytes()).await;
        let (note, handed_on) = lines.split_last().unwrap();
        assert_eq!(handed_on, vec!["x"; 1000]);
        assert_eq!(note, "4000 lines were dropped: more than 200 a second");
        assert_eq!(words.len(), LAST_WORDS);
    }

    #[test]
    fn the_rate_recovers_with_time() {
        let start = Instant::now();
        let mut rate = Rate { tokens: 0.0, at: start, dropped: 0 };
        assert!(!rate.admits(start));
        assert!(rate.admits(start + Duration::from_millis(10)));
        assert!(rate.note().unwrap().starts_with("1 lines"));
    }
}
