//! The opaque place in a timeline: the last row's sort key.

use std::fmt;

use lockstep_api::{FieldError, Rank, Step, StepTimeline};

/// After this row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimelinePlace {
    pub(crate) attempt_number: i32,
    pub(crate) step: Step,
    pub(crate) rank: Rank,
}

impl TimelinePlace {
    /// Of a row.
    pub(crate) fn of(row: &StepTimeline) -> Self {
        Self { attempt_number: row.attempt_number, step: row.step, rank: row.rank }
    }

    /// From `cursor` of a query.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn parse(text: &str) -> Result<Self, FieldError> {
        let unknown = || FieldError::new("cursor", "expected a next_cursor of this list");
        let mut numbers = text.split('-').map(|part| digits(part).ok_or_else(unknown));
        let mut next = || numbers.next().ok_or_else(unknown)?;
        let (attempt_number, step, rank) = (next()?, next()?, next()?);
        if numbers.next().is_some() {
            return Err(unknown());
        }
        Ok(Self {
            attempt_number: i32::try_from(attempt_number).map_err(|_| unknown())?,
            step: Step(step),
            rank: Rank(i32::try_from(rank).map_err(|_| unknown())?),
        })
    }
}

/// Digits alone: Rust's own parser takes a sign too.
fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for TimelinePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.attempt_number, self.step.0, self.rank.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_text_and_nothing_else_is_one() {
        let place = TimelinePlace { attempt_number: 2, step: Step(i64::MAX), rank: Rank(63) };
        assert_eq!(TimelinePlace::parse(&place.to_string()), Ok(place));
        for text in ["", "1-2", "1-2-3-4", "1-2-+3", "1--2", "a-b-c", "99999999999-1-1"] {
            assert_eq!(TimelinePlace::parse(text).unwrap_err().field, "cursor", "{text}");
        }
    }
}
