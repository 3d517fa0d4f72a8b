//! What should run here against what does. Pure: no I/O, no clock.

use std::collections::BTreeMap;

use lockstep_api::{Assignment, Fence};

/// What an attempt's task has been told. It only ever goes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Run.
    Run,
    /// Finish the step and leave.
    Stop,
    /// Die.
    Kill,
}

/// One attempt on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Local {
    /// Its task is at work under this order.
    Active(Order),
    /// Its task has reported the end. Kept until the server no longer lists it, so that it is not started twice.
    Ended,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Start an attempt.
    Start(Box<Assignment>),
    /// Tell an attempt.
    Tell(Fence, Order),
    /// Forget one that has ended.
    Forget(Fence),
}

/// The fence of an assignment.
pub(crate) fn fence_of(assignment: &Assignment) -> Fence {
    Fence { attempt_id: assignment.attempt_id, generation: assignment.generation }
}

/// What to do so that `local` becomes `wanted`, in order: what must go goes first.
pub(crate) fn difference(wanted: &[Assignment], local: &BTreeMap<Fence, Local>) -> Vec<Action> {
    let listed: BTreeMap<Fence, &Assignment> = wanted.iter().map(|it| (fence_of(it), it)).collect();
    let mut actions = Vec::new();
    for (fence, state) in local {
        let target = match listed.get(fence) {
            None => Order::Kill,
            Some(assignment) if assignment.is_stopping => Order::Stop,
            Some(_) => Order::Run,
        };
        match state {
            Local::Active(order) if *order < target => actions.push(Action::Tell(*fence, target)),
            Local::Active(_) => {}
            Local::Ended if target == Order::Kill => actions.push(Action::Forget(*fence)),
            Local::Ended => {}
        }
    }
    for (fence, assignment) in listed {
        if !local.contains_key(&fence) {
            actions.push(Action::Start(Box::new(assignment.clone())));
        }
    }
    actions
}

#[cfg(test)]
pub(crate) mod tests {
    use lockstep_api::{AttemptId, Generation, JobId, Rank};
    use proptest::prelude::*;

    use super::*;

    pub(crate) const SPEC: &str = r#"{
        "name": "n", "model": {"arch": "mlp", "inputs": 2, "classes": 2},
        "data": {"train": "t"}, "loader": {"component": "l"}, "loss": {"component": "c"},
        "train": {"global_batch": 4, "micro_batch": 2, "epochs": 1, "optimizer": {"name": "sgd", "lr": 0.1}},
        "timeouts": {"collective": "2s"}
    }"#;

    pub(crate) fn fence(attempt: u8, generation: i64) -> Fence {
        let attempt_id = AttemptId::new(0, [attempt; 10]);
        Fence { attempt_id, generation: Generation(generation) }
    }

    pub(crate) fn assignment(fence: Fence, ranks: i32, is_stopping: bool) -> Assignment {
        Assignment {
            job_id: JobId::new(0, [0; 10]),
            attempt_id: fence.attempt_id,
            generation: fence.generation,
            is_stopping,
            world_size: ranks.unsigned_abs(),
            ranks: (0..ranks).map(Rank).collect(),
            slot_index: (0..ranks).collect(),
            spec: serde_json::from_str(SPEC).unwrap(),
            train_files: Vec::new(),
            eval_files: Vec::new(),
            resume: None,
            attempt_key: "key".to_owned(),
            network: None,
        }
    }

    #[test]
    fn a_new_generation_kills_the_old_one_first() {
        let (old, new) = (fence(1, 1), fence(1, 2));
        let local = BTreeMap::from([(old, Local::Active(Order::Run))]);
        let wanted = assignment(new, 2, false);
        assert_eq!(
            difference(std::slice::from_ref(&wanted), &local),
            [Action::Tell(old, Order::Kill), Action::Start(Box::new(wanted))]
        );
    }

    #[test]
    fn an_attempt_that_ended_is_not_started_again_while_the_server_still_lists_it() {
        let local = BTreeMap::from([(fence(1, 1), Local::Ended)]);
        assert_eq!(difference(&[assignment(fence(1, 1), 2, false)], &local), []);
        assert_eq!(difference(&[assignment(fence(1, 1), 2, true)], &local), []);
        assert_eq!(difference(&[], &local), [Action::Forget(fence(1, 1))]);
    }

    #[test]
    fn a_stop_is_told_once_and_never_taken_back() {
        let wanted = [assignment(fence(1, 1), 2, true)];
        let running = BTreeMap::from([(fence(1, 1), Local::Active(Order::Run))]);
        assert_eq!(difference(&wanted, &running), [Action::Tell(fence(1, 1), Order::Stop)]);
        let stopping = BTreeMap::from([(fence(1, 1), Local::Active(Order::Stop))]);
        assert_eq!(difference(&wanted, &stopping), []);
        assert_eq!(difference(&[assignment(fence(1, 1), 2, false)], &stopping), []);
    }

    fn any_local() -> impl Strategy<Value = Local> {
        prop_oneof![
            Just(Local::Ended),
            prop_oneof![Just(Order::Run), Just(Order::Stop), Just(Order::Kill)]
                .prop_map(Local::Active),
        ]
    }

    proptest! {
        /// Whatever runs and whatever is wanted: after the actions, exactly the wanted attempts run or have
        /// ended, everything else is dying, and a second look asks for nothing.
        #[test]
        fn one_round_is_enough_and_a_second_asks_for_nothing(
            local in proptest::collection::btree_map((0..4u8, 0..3i64), any_local(), 0..6),
            wanted in proptest::collection::btree_map((0..4u8, 0..3i64), any::<bool>(), 0..6),
        ) {
            let mut local: BTreeMap<Fence, Local> =
                local.into_iter().map(|((a, g), state)| (fence(a, g), state)).collect();
            let wanted: Vec<Assignment> = wanted.into_iter()
                .map(|((a, g), is_stopping)| assignment(fence(a, g), 1, is_stopping)).collect();
            for action in difference(&wanted, &local) {
                match action {
                    Action::Start(it) => {
                        prop_assert_eq!(local.insert(fence_of(&it), Local::Active(Order::Run)), None);
                    }
                    Action::Tell(it, order) => {
                        let old = local.insert(it, Local::Active(order));
                        prop_assert!(matches!(old, Some(Local::Active(old)) if old < order));
                    }
                    Action::Forget(it) => prop_assert_eq!(local.remove(&it), Some(Local::Ended)),
                }
            }
            for it in &wanted {
                prop_assert!(local.contains_key(&fence_of(it)));
            }
            for (it, state) in &local {
                let is_wanted = wanted.iter().any(|w| fence_of(w) == *it);
                prop_assert!(is_wanted || *state == Local::Active(Order::Kill));
            }
            let again = difference(&wanted, &local);
            let only_new_stops = again.iter().all(|it| matches!(it, Action::Tell(_, Order::Stop)));
            prop_assert!(only_new_stops, "{:?}", again);
        }
    }
}
