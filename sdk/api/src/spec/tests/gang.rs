//! A number of ranks, or a range of them.

use super::{MLP, SGD, errors, job};
use crate::{RankCount, RankRange};

fn gang(rest: &str) -> Vec<String> {
    errors(job(MLP, SGD, rest))
}

#[test]
fn ranks_are_a_number_or_a_range() {
    let ranks = |rest| job(MLP, SGD, rest).unwrap().gang.ranks;
    let number = ranks("[gang]\nranks = 3");
    assert_eq!((number, number.min(), number.max()), (RankCount::Fixed(3), 3, 3));
    let range = ranks("[gang]\nranks = { min = 1, max = 4 }");
    assert_eq!(range, RankCount::Elastic(RankRange { min: 1, max: 4 }));
    assert_eq!((range.min(), range.max(), range.is_elastic()), (1, 4, true));
    assert_eq!([number, range].map(|it| it.to_string()), ["3", "1 to 4"]);
    let written = serde_json::to_value([number, range]).unwrap();
    assert_eq!(written, serde_json::json!([3, { "min": 1, "max": 4 }]));
}

#[test]
fn a_range_that_is_none_is_refused() {
    let told = |min, max| gang(&format!("[gang]\nranks = {{ min = {min}, max = {max} }}"));
    assert_eq!(told(1, 64), [""; 0]);
    assert_eq!(told(0, 2), ["gang.ranks.min: expected 1 to gang.ranks.max, which is 2, got 0"]);
    assert_eq!(told(3, 2), ["gang.ranks.min: expected 1 to gang.ranks.max, which is 2, got 3"]);
    assert_eq!(told(1, 65), ["gang.ranks.max: expected 1 to 64, got 65"]);
    let wrong = |text: &str| gang(&format!("[gang]\nranks = {text}"));
    let either = "expected a number of ranks, or a table of `min` and `max`";
    let told = |got: &str| vec![format!("gang.ranks: invalid {got}, {either}")];
    assert_eq!(wrong("\"two\""), told("type: string \"two\""));
    assert_eq!(wrong("-1"), told("value: integer `-1`"));
    assert_eq!(wrong("1.5"), told("type: floating point `1.5`"));
    assert_eq!(wrong("{ min = 1 }"), ["gang.ranks: missing field `max`"]);
    let told =
        "gang.ranks.max: invalid type: string \"4\", expected a whole number, 0 to 4294967295";
    assert_eq!(wrong("{ min = 1, max = \"4\" }"), [told]);
    let told = "gang.ranks.most: unknown field `most`, expected `min` or `max`";
    assert_eq!(wrong("{ min = 1, max = 2, most = 3 }"), [told]);
}

#[test]
fn what_depends_on_the_number_of_ranks_keeps_it_as_it_is() {
    let told = |ddp: &str| gang(&format!("[gang]\nranks = {{ min = 1, max = 2 }}\n[ddp]\n{ddp}"));
    assert_eq!(told("hook = \"bf16\""), [""; 0]);
    let no_copies = "gang.ranks: expected a number with ddp.shard = \"zero1\", ddp.sync_every above 1 or a ddp.hook that keeps \
                     state, got 1 to 2";
    for ddp in ["shard = \"zero1\"", "sync_every = 4", "hook = \"power-sgd\""] {
        assert_eq!(told(ddp), [no_copies], "{ddp}");
    }
    let joint = "gang.ranks: expected a number with ddp.sync_batch_norm, got 1 to 2";
    assert_eq!(told("sync_batch_norm = true"), [joint]);
}
