//! Which checkpoints of a job are kept.
//!
//! Kept are the newest, the best, and those that are held: pinned by someone, or resumed from by an attempt that has not
//! ended. A checkpoint may be kept for several reasons; it goes when none is left. The newest is kept whatever the job
//! says, so that a pass never leaves a job with nothing to resume from.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use lockstep_api::{BestMode, CheckpointId, CheckpointSpec, Step};

/// A published checkpoint, as far as keeping it is concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// Its id. Ids are minted in order of time.
    pub id: CheckpointId,
    /// Optimizer steps done.
    pub step: Step,
    /// What the job judges checkpoints by, measured after that step; `None` if nothing was, or nothing finite.
    pub value: Option<f64>,
    /// Pinned, or resumed from by an attempt that has not ended.
    pub is_held: bool,
}

/// Those that nothing keeps, in the order given.
pub fn superfluous(published: &[Published], spec: &CheckpointSpec) -> Vec<CheckpointId> {
    let held = published.iter().filter(|it| it.is_held).map(|it| it.id);
    let mut kept: BTreeSet<CheckpointId> = held.collect();

    let mut newest: Vec<&Published> = published.iter().collect();
    newest.sort_by_key(|it| std::cmp::Reverse((it.step, it.id)));
    kept.extend(newest.iter().take(len(spec.keep_last).max(1)).map(|it| it.id));

    let judged = published.iter().filter_map(|it| {
        let value = it.value.filter(|value| value.is_finite())?;
        Some((value, it))
    });
    let mut best: Vec<(f64, &Published)> = judged.collect();
    best.sort_by(|(a, one), (b, other)| {
        better_first(spec.best.mode, *a, *b).then((one.step, one.id).cmp(&(other.step, other.id)))
    });
    kept.extend(best.iter().take(len(spec.keep_best)).map(|(_, it)| it.id));

    published.iter().map(|it| it.id).filter(|id| !kept.contains(id)).collect()
}

/// −0 is no better than 0.
fn better_first(mode: BestMode, a: f64, b: f64) -> Ordering {
    let smaller_first = a.partial_cmp(&b).unwrap_or(Ordering::Equal);
    match mode {
        BestMode::Min => smaller_first,
        BestMode::Max => smaller_first.reverse(),
    }
}

fn len(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use lockstep_api::BestSpec;
    use proptest::prelude::*;

    use super::*;

    fn published(number: u8, step: i64, value: Option<f64>) -> Published {
        let id = CheckpointId::new(u64::from(number), [0; 10]);
        Published { id, step: Step(step), value, is_held: false }
    }

    fn spec(keep_last: u32, keep_best: u32, mode: BestMode) -> CheckpointSpec {
        let best = BestSpec { mode, ..BestSpec::default() };
        CheckpointSpec { keep_last, keep_best, best, ..CheckpointSpec::default() }
    }

    /// The steps that are left.
    fn left(published: &[Published], spec: &CheckpointSpec) -> Vec<i64> {
        let gone = superfluous(published, spec);
        published.iter().filter(|it| !gone.contains(&it.id)).map(|it| it.step.0).collect()
    }

    fn course(values: &[Option<f64>]) -> Vec<Published> {
        (1..)
            .zip(values)
            .map(|(number, value)| published(number, i64::from(number), *value))
            .collect()
    }

    #[test]
    fn the_best_stays_while_newer_ones_come_and_go() {
        let course = course(&[Some(0.9), Some(0.2), Some(0.5), Some(0.4)]);
        assert_eq!(left(&course, &spec(1, 0, BestMode::Min)), [4]);
        assert_eq!(left(&course, &spec(1, 1, BestMode::Min)), [2, 4]);
        assert_eq!(left(&course, &spec(1, 1, BestMode::Max)), [1, 4]);
        assert_eq!(
            left(&course, &spec(1, 2, BestMode::Min)),
            [2, 4],
            "the newest is one of the two"
        );
    }

    #[test]
    fn what_was_not_measured_or_is_not_finite_is_never_the_best_and_of_equals_the_older_is() {
        let course =
            course(&[None, Some(f64::NAN), Some(f64::NEG_INFINITY), Some(0.3), Some(0.3), None]);
        assert_eq!(left(&course, &spec(1, 1, BestMode::Min)), [4, 6]);
        assert_eq!(left(&course, &spec(1, 20, BestMode::Max)), [4, 5, 6]);
    }

    #[test]
    fn what_is_held_stays_beside_the_newest() {
        let mut course = course(&[None; 4]);
        course[0].is_held = true;
        assert_eq!(left(&course, &spec(2, 0, BestMode::Min)), [1, 3, 4]);
        course[3].is_held = true;
        assert_eq!(
            left(&course, &spec(1, 0, BestMode::Min)),
            [1, 4],
            "it takes a place of its own"
        );
    }

    fn any_published() -> impl Strategy<Value = Vec<Published>> {
        let value = proptest::option::of(prop_oneof![Just(f64::NAN), -3.0..3.0f64, Just(1.0)]);
        proptest::collection::vec((0..12i64, value, any::<bool>()), 0..16).prop_map(|drawn| {
            let one = |(number, (step, value, is_held))| Published {
                is_held,
                ..published(number, step, value)
            };
            (0..).zip(drawn).map(one).collect()
        })
    }

    proptest! {
        /// Whatever was published: the newest and all that is held stay, never more than there is room for, and whoever
        /// looks again finds nothing to do.
        #[test]
        fn a_pass_keeps_the_newest_and_what_is_held_and_is_finished_with_one_look(
            course in any_published(), last in 0..4u32, best in 0..4u32, is_max in any::<bool>(),
        ) {
            let spec = spec(last, best, if is_max { BestMode::Max } else { BestMode::Min });
            let gone = superfluous(&course, &spec);
            let kept: Vec<Published> =
                course.iter().filter(|it| !gone.contains(&it.id)).copied().collect();
            if let Some(newest) = course.iter().max_by_key(|it| (it.step, it.id)) {
                prop_assert!(!gone.contains(&newest.id));
            }
            prop_assert!(course.iter().all(|it| !it.is_held || !gone.contains(&it.id)));
            let held = course.iter().filter(|it| it.is_held).count();
            prop_assert!(kept.len() <= held + len(last).max(1) + len(best));
            prop_assert_eq!(superfluous(&kept, &spec), []);
            // Nothing that went is better than a best that stayed in its place only for being so.
            let finite = |it: &Published| it.value.filter(|value| value.is_finite());
            let better = |a: f64, b: f64| if is_max { b < a } else { a < b };
            if 0 < best {
                let top = course.iter().filter_map(finite).reduce(|a, b| if better(b, a) { b } else { a });
                if let Some(top) = top {
                    prop_assert!(kept.iter().filter_map(finite).any(|value| value == top));
                }
            }
        }
    }
}
