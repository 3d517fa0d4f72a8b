//! The opaque place in a list of jobs: the last row's sort key, and the filter it belongs to.

use chrono::{DateTime, Utc};
use lockstep_api::{FieldError, JobId, JobState, ListJobs};
use uuid::Uuid;

/// After this row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) id: JobId,
}

/// Bytes of a cursor: the filter, microseconds, the id.
const BYTES: usize = 1 + 8 + 16;

impl Cursor {
    /// As text, for the list with this filter.
    pub(crate) fn encode(self, state: Option<JobState>) -> String {
        let mut bytes = vec![filter(state)];
        bytes.extend(self.created_at.timestamp_micros().to_be_bytes());
        bytes.extend(self.id.0.as_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From `cursor` of a query.
    pub(crate) fn of(query: &ListJobs) -> Result<Option<Self>, FieldError> {
        let Some(text) = &query.cursor else { return Ok(None) };
        let unknown = || FieldError::new("cursor", "expected a next_cursor of this list");
        let bytes = decode(text).ok_or_else(unknown)?;
        let (own_filter, rest) = bytes.split_first().ok_or_else(unknown)?;
        if *own_filter != filter(query.state) {
            return Err(FieldError::new("cursor", "this cursor is of a list with another filter"));
        }
        let (time, id) = rest.split_first_chunk().ok_or_else(unknown)?;
        let created_at =
            DateTime::from_timestamp_micros(i64::from_be_bytes(*time)).ok_or_else(unknown)?;
        let id = Uuid::from_slice(id).map_err(|_| unknown())?;
        Ok(Some(Self { created_at, id: JobId(id) }))
    }
}

fn filter(state: Option<JobState>) -> u8 {
    let position = state.and_then(|state| JobState::ALL.iter().position(|other| *other == state));
    position.and_then(|position| u8::try_from(position + 1).ok()).unwrap_or(0)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    if text.len() != 2 * BYTES || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(state: Option<JobState>, cursor: &str) -> ListJobs {
        ListJobs { state, limit: None, cursor: Some(cursor.to_owned()) }
    }

    #[test]
    fn a_cursor_survives_text_and_belongs_to_its_filter() {
        let cursor = Cursor {
            created_at: DateTime::from_timestamp_micros(1_795_970_000_123_456).unwrap(),
            id: JobId::new(7, [9; 10]),
        };
        let text = cursor.encode(Some(JobState::Queued));
        assert_eq!(Cursor::of(&query(Some(JobState::Queued), &text)), Ok(Some(cursor)));
        assert!(Cursor::of(&query(Some(JobState::Failed), &text)).is_err());
        assert!(Cursor::of(&query(None, &text)).is_err());
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in ["", "00", "é", &"zz".repeat(BYTES), &"+1".repeat(BYTES), &"ff".repeat(BYTES)]
        {
            assert_eq!(Cursor::of(&query(None, text)).unwrap_err().field, "cursor", "{text}");
        }
    }
}
