//! Words of nodes and guests, made fit for the database: Postgres stores no NUL, and nothing is without a limit.

use chrono::{DateTime, Utc};
use serde_json::Value;

/// Longest line of a log, bytes.
pub(crate) const LINE_BYTES: usize = 8 << 10;
/// Longest sentence of a failure, bytes.
pub(crate) const MESSAGE_BYTES: usize = 4 << 10;
/// Longest evidence of a failure as JSON, bytes.
pub(crate) const EVIDENCE_BYTES: usize = 16 << 10;
/// Longest name of a metric, bytes.
pub(crate) const METRIC_NAME_BYTES: usize = 64;

/// `text` without NUL, cut at a character's border to `limit_bytes`.
pub(crate) fn storable(text: &str, limit_bytes: usize) -> String {
    let mut end = text.len().min(limit_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', "\u{fffd}")
}

/// Evidence without NUL; a text that says so in the place of evidence that is too long.
pub(crate) fn storable_evidence(evidence: &Value) -> Value {
    let length = serde_json::to_vec(evidence).map_or(usize::MAX, |text| text.len());
    if EVIDENCE_BYTES < length {
        return Value::from(format!("left out: {length} bytes, the limit is {EVIDENCE_BYTES}"));
    }
    without_nul(evidence)
}

/// The depth is bounded by the JSON parser's own limit.
fn without_nul(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(text.replace('\0', "\u{fffd}")),
        Value::Array(items) => items.iter().map(without_nul).collect(),
        Value::Object(fields) => {
            let clean = |(key, value): (&String, &Value)| {
                (key.replace('\0', "\u{fffd}"), without_nul(value))
            };
            Value::Object(fields.iter().map(clean).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A time by a node's clock, within what the database can hold.
pub(crate) fn storable_time(at: DateTime<Utc>) -> DateTime<Utc> {
    /// The last second of the year 9999.
    const LATEST_SECOND: i64 = 253_402_300_799;
    let latest = DateTime::from_timestamp(LATEST_SECOND, 0).unwrap_or(DateTime::UNIX_EPOCH);
    at.clamp(DateTime::UNIX_EPOCH, latest)
}

/// Whether a metric may be called so.
pub(crate) fn is_metric_name(name: &str) -> bool {
    (1..=METRIC_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_lose_nul_and_what_is_past_the_limit_but_no_half_character() {
        assert_eq!(storable("a\0b", 10), "a\u{fffd}b");
        assert_eq!(storable("aä", 2), "a");
        assert_eq!(storable("aä", 3), "aä");
    }

    #[test]
    fn evidence_is_cleaned_all_the_way_down_and_bounded() {
        let clean = storable_evidence(&json!({"a\0": ["x\0", 1, {"b": "\0"}]}));
        assert_eq!(clean, json!({"a\u{fffd}": ["x\u{fffd}", 1, {"b": "\u{fffd}"}]}));
        let long = storable_evidence(&json!("x".repeat(EVIDENCE_BYTES)));
        assert!(long.as_str().unwrap().starts_with("left out"));
    }

    #[test]
    fn metric_names_are_small_and_plain() {
        assert!(is_metric_name("eval/top_5"));
        for bad in ["", "Loss", "a b", "a\0", &"x".repeat(65)] {
            assert!(!is_metric_name(bad), "{bad:?}");
        }
    }
}
