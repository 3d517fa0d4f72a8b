use std::time::Duration;

use proptest::prelude::*;

use super::{MLP, SGD, errors, job};
use crate::{JobSpec, TimeoutSpec};

fn timeouts(text: &str) -> JobSpec {
    job(MLP, SGD, &format!("[timeouts]\n{text}")).unwrap()
}

fn timeout_errors(text: &str) -> Vec<String> {
    errors(Ok(timeouts(text)))
}

#[test]
fn values_that_are_in_order_are_taken_as_they_are() {
    let text = "collective = \"60s\"\nsnapshot = \"1s\"\nsoft = \"5s\"\nabort = \"8s\"\nformation = \"2m\"";
    let spec = timeouts(text);
    assert_eq!(spec.check(), vec![]);
    let limits = spec.timeouts.effective();
    let seconds =
        [limits.snapshot(), limits.soft(), limits.abort(), limits.collective(), limits.formation()];
    assert_eq!(seconds, [1, 5, 8, 60, 120].map(Duration::from_secs));
    assert_eq!(spec.collective_timeout(), Duration::from_secs(60));
}

#[test]
fn values_out_of_order_are_refused_by_name_with_what_was_expected() {
    let one = |text: &str| {
        let errors = timeout_errors(text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors.concat()
    };
    assert_eq!(
        one("soft = \"60s\""),
        "timeouts.soft: expected more than timeouts.snapshot (600ms) and less than timeouts.abort (10s), got \"60s\""
    );
    assert_eq!(
        one("abort = \"6s\""),
        "timeouts.abort: expected more than timeouts.soft (6s) and less than timeouts.collective (60s), got \"6s\""
    );
    assert_eq!(
        one("formation = \"59s\""),
        "timeouts.formation: expected timeouts.collective (60s) or more, at most 60m, got \"59s\""
    );
    assert_eq!(
        one("snapshot = \"0s\""),
        "timeouts.snapshot: expected more than 0 and less than timeouts.soft (6s), got \"0s\""
    );
    assert_eq!(
        one("collective = \"499ms\""),
        "timeouts.collective: expected 500ms to 60m, got \"499ms\""
    );
    assert_eq!(
        one("soft = \"soon\""),
        "timeouts.soft: expected a number and a unit (ms, s, m) such as \"60s\", got \"soon\""
    );
    assert_eq!(timeout_errors("soft = \"8s\"\nabort = \"8s\"").len(), 2);
    let unknown = errors(job(MLP, SGD, "[timeouts]\nsofter = \"1s\"")).concat();
    assert!(
        unknown.starts_with("timeouts.softer: ") && unknown.contains("did you mean `soft`"),
        "{unknown}"
    );
}

#[test]
fn the_shortest_collective_keeps_the_order_by_itself() {
    assert_eq!(timeout_errors("collective = \"500ms\""), Vec::<String>::new());
    assert_eq!(timeout_errors("collective = \"60m\""), Vec::<String>::new());
}

proptest! {
    /// A job is accepted if and only if its effective limits are in order.
    #[test]
    fn exactly_what_is_in_order_is_accepted(
        collective in 500_u64..5000,
        own in proptest::array::uniform4(proptest::option::of(0_u64..6000)),
    ) {
        let text = |time: u64| format!("{time}ms");
        let [snapshot, soft, abort, formation] = own.map(|it| it.map(text));
        let mut spec = timeouts("");
        spec.timeouts = TimeoutSpec { collective: text(collective), soft, snapshot, abort, formation };
        let limits = spec.timeouts.effective();
        let is_in_order = !limits.snapshot().is_zero()
            && limits.snapshot() < limits.soft()
            && limits.soft() < limits.abort()
            && limits.abort() < limits.collective()
            && limits.collective() <= limits.formation();
        prop_assert_eq!(spec.check().is_empty(), is_in_order, "{:?}: {:?}", limits, spec.check());
    }
}
