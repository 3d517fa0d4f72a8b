//! When a job is tried again after a failure, and when that is hopeless.
//!
//! An attempt that did steps says that the job can run: what ended it is over, most likely, and the next one begins
//! soon. Attempts that end without a step would otherwise spend a budget of retries within a second: each in a row
//! doubles the wait.

use std::fmt;

use chrono::TimeDelta;
use lockstep_api::{Blame, FailureCode, FailureReport, Step};

/// From a failure to the next attempt.
pub const FIRST_WAIT: TimeDelta = TimeDelta::seconds(1);
/// No job waits longer than this after a failure.
pub const LONGEST_WAIT: TimeDelta = TimeDelta::seconds(60);
/// How often a wait is doubled: more often, and it is the longest one.
const DOUBLINGS: u32 = 6;

/// How long a job waits after a failure, of whose attempts the last `idle_attempts` ended without having done a step.
pub fn wait_after(idle_attempts: u32) -> TimeDelta {
    let doublings = idle_attempts.saturating_sub(1).min(DOUBLINGS);
    (FIRST_WAIT * (1 << doublings)).min(LONGEST_WAIT)
}

/// Why a job waits that was just lost: `waits 4 s after a failure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits(pub TimeDelta);

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waits {} s after a failure", self.0.num_seconds())
    }
}

/// Whether another attempt could end otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Outlook {
    /// As far as is known.
    #[default]
    Open,
    /// The same thing broke at the same place twice.
    Hopeless,
}

/// What broke twice at the same place, by the job's own fault. `Display` is the sentence for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeated {
    code: FailureCode,
    place: Place,
}

#[derive(Debug, Clone, PartialEq)]
enum Place {
    Sample(String),
    Samples,
    Step(Step),
}

/// Whether the verdict `last` repeats the one `before` it: the same code at the same sample or samples, or in the same
/// step with the same message. Machines do not fail twice for the same reason; code and data do.
pub fn repeated(before: &FailureReport, last: &FailureReport) -> Option<Repeated> {
    if last.code.blame() != Blame::User || before.code != last.code {
        return None;
    }
    let same = |name: &str| {
        let value = last.evidence.get(name).filter(|value| !value.is_null());
        value.filter(|value| before.evidence.get(name) == Some(value)).cloned()
    };
    let place = match (same("sample"), same("samples"), last.step) {
        (Some(sample), ..) => Place::Sample(sample.to_string()),
        (None, Some(_), _) => Place::Samples,
        (None, None, Some(step)) if before.step == Some(step) && before.message == last.message => {
            Place::Step(step)
        }
        (None, None, _) => return None,
    };
    Some(Repeated { code: last.code, place })
}

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code;
        match &self.place {
            Place::Sample(sample) => write!(f, "not tried again: {code} at sample {sample}")?,
            Place::Samples => write!(f, "not tried again: {code} at the same samples")?,
            Place::Step(step) => write!(f, "not tried again: {code} in step {step}")?,
        }
        f.write_str(", as in the attempt before")
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::Rank;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn verdict(code: FailureCode, step: i64, message: &str, evidence: Value) -> FailureReport {
        FailureReport {
            code,
            rank: Some(Rank(1)),
            exit: None,
            step: Some(Step(step)),
            phase: None,
            message: message.to_owned(),
            evidence,
        }
    }

    #[test]
    fn a_wait_doubles_with_each_attempt_that_did_nothing_and_has_an_end() {
        let seconds: Vec<i64> = (0..10).map(|idle| wait_after(idle).num_seconds()).collect();
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(wait_after(u32::MAX), LONGEST_WAIT);
        assert_eq!(Waits(wait_after(3)).to_string(), "waits 4 s after a failure");
    }

    #[test]
    fn what_breaks_at_the_same_sample_is_not_tried_again() {
        let trap = |step, sample| {
            verdict(
                FailureCode::GuestTrap,
                step,
                &format!("step {step}"),
                json!({"sample": sample}),
            )
        };
        assert_eq!(
            repeated(&trap(5, json!(17)), &trap(9, json!(17))).unwrap().to_string(),
            "not tried again: guest_trap at sample 17, as in the attempt before"
        );
        assert_eq!(repeated(&trap(5, json!(17)), &trap(9, json!(18))), None);
        assert_eq!(repeated(&trap(5, Value::Null), &trap(9, Value::Null)), None);
        let shape = |samples| verdict(FailureCode::GuestShape, 5, "s", json!({"samples": samples}));
        let (one, other) = (shape(json!([1, 2])), trap(5, json!(17)));
        assert!(repeated(&one, &one).unwrap().to_string().contains("the same samples"));
        assert_eq!(repeated(&one, &other), None, "another place");
        let mut renamed = other.clone();
        renamed.code = FailureCode::GuestError;
        assert_eq!(repeated(&renamed, &other), None, "another code");
    }

    #[test]
    fn without_samples_step_and_message_are_compared() {
        let at = |step, message| verdict(FailureCode::NonFinite, step, message, json!({}));
        let told = repeated(&at(7, "loss is NaN"), &at(7, "loss is NaN")).unwrap().to_string();
        assert_eq!(told, "not tried again: non_finite in step 7, as in the attempt before");
        assert_eq!(repeated(&at(7, "loss is NaN"), &at(8, "loss is NaN")), None);
        assert_eq!(repeated(&at(7, "loss is NaN"), &at(7, "another")), None);
        let mut unknown = at(7, "m");
        unknown.step = None;
        assert_eq!(repeated(&unknown, &unknown), None, "nobody knows where");
    }

    proptest! {
        /// Machines are always given another chance.
        #[test]
        fn no_fault_of_a_machine_is_hopeless(code in prop::sample::select(FailureCode::ALL), sample in 0..3i64) {
            let last = verdict(code, 1, "m", json!({"sample": sample}));
            prop_assert_eq!(repeated(&last, &last).is_some(), code.blame() == Blame::User);
        }
    }
}
