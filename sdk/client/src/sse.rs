//! A small parser of server-sent events: bytes in, whole events out. No I/O.

/// Longest line that is kept. A longer one is an error: the stream is not ours.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Longest data of one event.
const MAX_DATA_BYTES: usize = 4 << 20;

/// One event as it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SseEvent {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) data: String,
}

/// A line or an event is longer than its limit, or is no UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Takes bytes as they arrive, cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
    after_return: bool,
}

impl SseParser {
    /// Appends the events that `bytes` complete.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<SseEvent>,
    ) -> Result<(), Malformed> {
        for &byte in bytes {
            let after_return = std::mem::take(&mut self.after_return);
            match byte {
                // The second half of a CR LF, whose first half ended the line.
                b'\n' if after_return => {}
                b'\n' => self.end_line(events)?,
                b'\r' => {
                    self.end_line(events)?;
                    self.after_return = true;
                }
                _ if self.line.len() == MAX_LINE_BYTES => return Err(Malformed),
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<SseEvent>) -> Result<(), Malformed> {
        let line = std::mem::take(&mut self.line);
        let line = str::from_utf8(&line).map_err(|_| Malformed)?;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                events.push(event);
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if MAX_DATA_BYTES < self.event.data.len() + value.len() {
                    return Err(Malformed);
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "event" => self.event.name = Some(value.to_owned()),
            // A comment (empty field), `retry`, or something newer than this client.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(bytes: &[u8]) -> Vec<SseEvent> {
        let mut events = Vec::new();
        SseParser::default().feed(bytes, &mut events).unwrap();
        events
    }

    fn event(id: Option<&str>, name: Option<&str>, data: &str) -> SseEvent {
        SseEvent { id: id.map(str::to_owned), name: name.map(str::to_owned), data: data.to_owned() }
    }

    #[test]
    fn fields_comments_and_blank_lines_are_told_apart() {
        let text = ": hello\n\nid: 7\nevent: job\ndata: {\"a\":1}\n\ndata:x\ndata\ndata: y\nretry: 5\n\nid: 9\n\n";
        assert_eq!(
            parse(text.as_bytes()),
            [event(Some("7"), Some("job"), "{\"a\":1}"), event(None, None, "x\n\ny")]
        );
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_given_out() {
        assert_eq!(parse(b"data: half"), []);
        assert_eq!(parse(b"data: half\n"), []);
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_limit() {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        assert_eq!(parser.feed(&vec![b'a'; MAX_LINE_BYTES + 1], &mut events), Err(Malformed));
    }

    proptest! {
        #[test]
        fn cutting_the_bytes_anywhere_and_any_line_ending_changes_nothing(
            datas in proptest::collection::vec("[ -~é]{0,20}", 1..5),
            ending in prop_oneof![Just("\n"), Just("\r"), Just("\r\n")],
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let text: String = datas.iter().enumerate()
                .map(|(i, data)| format!("id: {i}{ending}data: {data}{ending}{ending}"))
                .collect();
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut parser, mut events, mut from) = (SseParser::default(), Vec::new(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                parser.feed(&bytes[from..cut], &mut events).unwrap();
                from = cut;
            }
            let expected: Vec<SseEvent> = datas.iter().enumerate()
                .map(|(i, data)| event(Some(&i.to_string()), None, data)).collect();
            prop_assert_eq!(events, expected);
        }
    }
}
