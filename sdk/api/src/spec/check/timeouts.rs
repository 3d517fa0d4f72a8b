//! `[timeouts]`: each in its range, and all of them in order.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Check, parse_duration};
use crate::TimeoutSpec;

/// What `timeouts.collective` may be.
const COLLECTIVE: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(3600);

impl Check {
    pub(super) fn timeouts(&mut self, spec: &TimeoutSpec) {
        let known = self.errors.len();
        let collective = self.duration("timeouts.collective", Some(&spec.collective));
        if collective.is_some_and(|time| !COLLECTIVE.contains(&time)) {
            let message = format!("expected 500ms to 60m, got {:?}", spec.collective);
            self.add("timeouts.collective", message);
        }
        let own = [
            ("timeouts.snapshot", &spec.snapshot),
            ("timeouts.soft", &spec.soft),
            ("timeouts.abort", &spec.abort),
            ("timeouts.formation", &spec.formation),
        ]
        .map(|(field, text)| (field, text, self.duration(field, text.as_ref())));
        if known != self.errors.len() {
            return;
        }
        let limits = spec.effective();
        let snapshot = ("timeouts.snapshot", limits.snapshot());
        let soft = ("timeouts.soft", limits.soft());
        let abort = ("timeouts.abort", limits.abort());
        let whole = ("timeouts.collective", limits.collective());
        let neighbours = [
            (None, Some(soft)),
            (Some(snapshot), Some(abort)),
            (Some(soft), Some(whole)),
            (Some(whole), None),
        ];
        for ((field, text, time), (shorter, longer)) in own.into_iter().zip(neighbours) {
            let (Some(text), Some(time)) = (text, time) else { continue };
            let expected = match (shorter, longer) {
                // Only the formation has nothing above it. It may take as long as a collective.
                (Some((name, least)), None) => {
                    let holds = (least..=*COLLECTIVE.end()).contains(&time);
                    (!holds).then(|| format!("{name} ({}) or more, at most 60m", written(least)))
                }
                (shorter, longer) => {
                    let least = shorter.map_or(Duration::ZERO, |(_, least)| least);
                    let holds = least < time && longer.is_none_or(|(_, most)| time < most);
                    (!holds).then(|| between(shorter, longer))
                }
            };
            if let Some(expected) = expected {
                self.add(field, format!("expected {expected}, got {text:?}"));
            }
        }
    }

    fn duration(&mut self, field: &str, text: Option<&String>) -> Option<Duration> {
        parse_duration(text?).map_err(|message| self.add(field, message)).ok()
    }
}

/// `more than timeouts.snapshot (600ms) and less than timeouts.abort (10s)`
fn between(shorter: Option<(&str, Duration)>, longer: Option<(&str, Duration)>) -> String {
    let bound = |word: &str, (name, time): (&str, Duration)| {
        format!("{word} than {name} ({})", written(time))
    };
    let least = shorter.map_or_else(|| "more than 0".to_owned(), |it| bound("more", it));
    match longer {
        Some(longer) => format!("{least} and {}", bound("less", longer)),
        None => least,
    }
}

/// As people write it: `600ms`, `10s`.
fn written(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{}ms", time.as_millis()),
    }
}
