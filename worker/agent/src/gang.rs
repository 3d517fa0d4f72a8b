//! What should run here against what does. Pure: no I/O, no clock.

use std::collections::BTreeMap;

use lockstep_api::{Assignment, AttemptId, Fence, Generation};

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

/// One attempt on this node, under the newest generation that it was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) generation: Generation,
    pub(crate) state: LocalState,
}

/// What an attempt's task is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalState {
    /// It is at work under this order.
    Active(Order),
    /// It has reported the end. Kept until the server no longer lists it, so that it is not started twice.
    Ended,
    /// The same, and its ranks here had finished training: they are not started again, whatever the server has yet to hear.
    Finished,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Start an attempt.
    Start(Box<Assignment>),
    /// Tell an attempt of its next group.
    Regroup(Box<Assignment>),
    /// Tell an attempt.
    Tell(AttemptId, Order),
    /// Forget one that has ended.
    Forget(AttemptId),
}

/// The fence of an assignment.
pub(crate) fn fence_of(assignment: &Assignment) -> Fence {
    Fence { attempt_id: assignment.attempt_id, generation: assignment.generation }
}

/// What to do so that `local` becomes `wanted`, in order: what must go goes first.
pub(crate) fn difference(wanted: &[Assignment], local: &BTreeMap<AttemptId, Local>) -> Vec<Action> {
    let listed: BTreeMap<AttemptId, &Assignment> =
        wanted.iter().map(|it| (it.attempt_id, it)).collect();
    let mut actions = Vec::new();
    for (id, Local { state, .. }) in local {
        let target = match listed.get(id) {
            None => Order::Kill,
            Some(assignment) if assignment.is_stopping => Order::Stop,
            Some(_) => Order::Run,
        };
        match state {
            LocalState::Active(order) if *order < target => actions.push(Action::Tell(*id, target)),
            LocalState::Active(_) => {}
            LocalState::Ended | LocalState::Finished if target == Order::Kill => {
                actions.push(Action::Forget(*id));
            }
            LocalState::Ended | LocalState::Finished => {}
        }
    }
    for (id, assignment) in listed {
        let generation = assignment.generation;
        let assignment = || Box::new(assignment.clone());
        match local.get(&id) {
            None => actions.push(Action::Start(assignment())),
            Some(known) if generation <= known.generation => {}
            Some(Local { state: LocalState::Ended, .. }) => {
                actions.push(Action::Start(assignment()));
            }
            Some(Local { state: LocalState::Active(Order::Run), .. }) => {
                actions.push(Action::Regroup(assignment()));
            }
            // It ends first, or training is over.
            Some(Local {
                state: LocalState::Active(Order::Stop | Order::Kill) | LocalState::Finished,
                ..
            }) => {}
        }
    }
    actions
}

#[cfg(test)]
pub(crate) mod tests {
    use lockstep_api::{AssignedRank, AttemptId, Generation, JobId, Rank, Step};
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
            ranks: (0..ranks).map(assigned).collect(),
            spec: serde_json::from_str(SPEC).unwrap(),
            train_files: Vec::new(),
            eval_files: Vec::new(),
            resume: None,
            steps_reported: Step(0),
            faults_done: Vec::new(),
            attempt_key: "key".to_owned(),
            network: None,
        }
    }

    fn assigned(rank: i32) -> AssignedRank {
        AssignedRank { rank: Rank(rank), slot_index: rank, process: rank, heals: false }
    }

    fn local(generation: i64, state: LocalState) -> BTreeMap<AttemptId, Local> {
        let generation = Generation(generation);
        BTreeMap::from([(fence(1, 0).attempt_id, Local { generation, state })])
    }

    #[test]
    fn a_new_generation_goes_to_the_task_that_is_at_work_and_starts_one_that_has_ended() {
        let wanted = assignment(fence(1, 2), 2, false);
        let wants = |state| difference(std::slice::from_ref(&wanted), &local(1, state));
        let regroup = Action::Regroup(Box::new(wanted.clone()));
        assert_eq!(wants(LocalState::Active(Order::Run)), [regroup]);
        assert_eq!(wants(LocalState::Active(Order::Kill)), [], "it ends first");
        assert_eq!(wants(LocalState::Ended), [Action::Start(Box::new(wanted.clone()))]);
        assert_eq!(wants(LocalState::Finished), [], "training is over");
    }

    #[test]
    fn an_attempt_that_ended_is_not_started_again_while_the_server_still_lists_it() {
        let ended = local(1, LocalState::Ended);
        assert_eq!(difference(&[assignment(fence(1, 1), 2, false)], &ended), []);
        assert_eq!(difference(&[assignment(fence(1, 1), 2, true)], &ended), []);
        assert_eq!(difference(&[], &ended), [Action::Forget(fence(1, 1).attempt_id)]);
    }

    #[test]
    fn a_stop_is_told_once_and_never_taken_back() {
        let wanted = [assignment(fence(1, 1), 2, true)];
        let id = fence(1, 1).attempt_id;
        let running = local(1, LocalState::Active(Order::Run));
        assert_eq!(difference(&wanted, &running), [Action::Tell(id, Order::Stop)]);
        let stopping = local(1, LocalState::Active(Order::Stop));
        assert_eq!(difference(&wanted, &stopping), []);
        assert_eq!(difference(&[assignment(fence(1, 1), 2, false)], &stopping), []);
    }

    fn any_local() -> impl Strategy<Value = (i64, LocalState)> {
        let active = prop_oneof![Just(Order::Run), Just(Order::Stop), Just(Order::Kill)];
        (0..3i64, prop_oneof![Just(LocalState::Ended), active.prop_map(LocalState::Active)])
    }

    proptest! {
        /// Whatever runs and whatever is wanted: after the actions, exactly the wanted attempts run, have ended or are ending,
        /// everything else is dying, and a second look asks for nothing but stops.
        #[test]
        fn one_round_is_enough_and_a_second_asks_for_nothing(
            local in proptest::collection::btree_map(0..4u8, any_local(), 0..6),
            wanted in proptest::collection::btree_map(0..4u8, (0..3i64, any::<bool>()), 0..6),
        ) {
            let mut local: BTreeMap<AttemptId, Local> = local.into_iter().map(|(id, (generation, state))| {
                (fence(id, 0).attempt_id, Local { generation: Generation(generation), state })
            }).collect();
            let wanted: Vec<Assignment> = wanted.into_iter()
                .map(|(id, (generation, is_stopping))| assignment(fence(id, generation), 1, is_stopping)).collect();
            for action in difference(&wanted, &local) {
                match action {
                    Action::Start(it) => {
                        let state = LocalState::Active(Order::Run);
                        let old = local.insert(it.attempt_id, Local { generation: it.generation, state });
                        prop_assert!(old.is_none_or(|old| old.state == LocalState::Ended));
                    }
                    Action::Regroup(it) => {
                        let known = local.get_mut(&it.attempt_id).unwrap();
                        prop_assert!(known.generation < it.generation);
                        known.generation = it.generation;
                    }
                    Action::Tell(it, order) => {
                        let known = local.get_mut(&it).unwrap();
                        prop_assert!(matches!(known.state, LocalState::Active(old) if old < order));
                        known.state = LocalState::Active(order);
                    }
                    Action::Forget(it) => {
                        prop_assert_eq!(local.remove(&it).map(|it| it.state), Some(LocalState::Ended));
                    }
                }
            }
            for it in &wanted {
                prop_assert!(local.contains_key(&it.attempt_id));
            }
            for (it, known) in &local {
                let is_wanted = wanted.iter().any(|w| w.attempt_id == *it);
                prop_assert!(is_wanted || known.state == LocalState::Active(Order::Kill));
            }
            let again = difference(&wanted, &local);
            let only_new_stops = again.iter().all(|it| matches!(it, Action::Tell(_, Order::Stop)));
            prop_assert!(only_new_stops, "{:?}", again);
        }
    }
}
