//! Real ranks whose group is not the first one of their attempt.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use harness::Gang;
use harness::jobs::{digits, digits_files};
use lockstep_api::{Generation, Rank, RankMessage, Reduction};

/// An attempt whose first group was lost while one node had not yet started its ranks: those never knew of it.
#[test]
fn a_rank_that_begins_and_one_that_heals_form_a_group() {
    let spec = digits(2, Reduction::FixedTree, 1);
    let undisturbed = Gang::start(&spec, &digits_files(), None).finish();
    for healing in [0, 1] {
        let outcome = Gang::start_as(&spec, &digits_files(), None, |config| {
            config.generation = Generation(2);
            config.heals = config.rank == Rank(healing);
        })
        .finish();
        outcome.assert_success();
        assert_eq!(outcome.losses(), undisturbed.losses());
        let source = 1 - healing;
        let told =
            format!("rank {healing} took over the state of rank {source}; it goes on with step 0");
        let is_it =
            |it: &RankMessage| matches!(it, RankMessage::Log { text, .. } if text.contains(&told));
        let words = outcome.messages.iter().flatten();
        assert_eq!(words.filter(|it| is_it(it)).count(), 1, "{:?}", outcome.messages);
    }
}
