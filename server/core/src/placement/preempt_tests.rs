use chrono::TimeDelta;
use lockstep_api::{DeviceKind, NodeId, RankRange, SlotSpec, Transport};
use proptest::prelude::*;
use uuid::Uuid;

use super::super::tests::node;
use super::*;

fn ask(ranks: u32) -> Request {
    let ranks = RankCount::Fixed(ranks);
    Request { ranks, slot: SlotSpec::default(), transport: Transport::Auto }
}

fn slot(node: u128, index: i32) -> SlotKey {
    SlotKey { node: NodeId(Uuid::from_u128(node)), device: DeviceKind::Cpu, index }
}

/// The one that began at its number, in these slots of node 1.
fn gang(number: u128, priority: u32, slots: &[i32]) -> GangAtWork {
    let seconds = i64::try_from(number).unwrap();
    GangAtWork {
        attempt: AttemptId(Uuid::from_u128(number)),
        priority: Priority(priority),
        preemptions: 0,
        placed_at: DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds),
        is_nearly_done: false,
        ranks: RankCount::Fixed(u32::try_from(slots.len()).unwrap()),
        slots: slots.iter().map(|index| slot(1, *index)).collect(),
    }
}

fn elastic(min: u32, gang: GangAtWork) -> GangAtWork {
    GangAtWork { ranks: RankCount::Elastic(RankRange { min, max: 8 }), ..gang }
}

/// Who gives way to one that waits with so many ranks and this priority on a full node.
fn gives_way(ranks: u32, priority: u32, at_work: &[GangAtWork]) -> Vec<u128> {
    let nodes = [node(1, &[true; 4])];
    asked((&[ask(ranks)], priority), &nodes, &Coming::default(), at_work)
}

fn asked(
    (queue, priority): (&[Request], u32),
    nodes: &[NodeOffer],
    coming: &Coming,
    at_work: &[GangAtWork],
) -> Vec<u128> {
    let chosen = preempt((queue, Priority(priority)), nodes, coming, at_work);
    chosen.iter().map(|attempt| attempt.0.as_u128()).collect()
}

#[test]
fn the_lowest_priority_gives_way_and_of_equals_the_one_that_began_last() {
    let at_work = [gang(1, 50, &[0]), gang(2, 40, &[1]), gang(3, 40, &[2]), gang(4, 60, &[3])];
    assert_eq!(gives_way(1, 50, &at_work), [3]);
    assert_eq!(gives_way(2, 50, &at_work), [2, 3]);
    assert_eq!(gives_way(3, 60, &at_work), [1, 2, 3]);
    assert_eq!(gives_way(1, 40, &at_work), [], "never one of the same priority");
    assert_eq!(gives_way(3, 50, &at_work), [], "it would not help");
    let at_work = [gang(1, 50, &[0, 1]), gang(2, 40, &[2]), gang(3, 40, &[3])];
    assert_eq!(gives_way(3, 60, &at_work), [1, 3], "without the earlier of the small ones");
}

#[test]
fn who_is_nearly_done_or_has_given_way_often_enough_is_left_alone() {
    let mut at_work = [gang(1, 50, &[0, 1]), gang(2, 40, &[2, 3])];
    at_work[1].preemptions = MAX_PREEMPTIONS - 1;
    assert_eq!(gives_way(2, 60, &at_work), [2]);
    at_work[1].preemptions = MAX_PREEMPTIONS;
    assert_eq!(gives_way(2, 60, &at_work), [1]);
    assert_eq!(gives_way(3, 60, &at_work), []);
    at_work[1].is_nearly_done = true;
    assert_eq!(gives_way(2, 60, &at_work), [], "its slots come anyway");
    assert_eq!(gives_way(3, 60, &at_work), [1], "the others come from elsewhere");
}

#[test]
fn ranks_that_a_gang_can_spare_go_before_whole_gangs() {
    let spares_two = elastic(1, gang(1, 50, &[0, 1, 2]));
    let at_work = [spares_two.clone(), gang(2, 40, &[3])];
    assert_eq!(gives_way(2, 60, &at_work), [], "they are reclaimed");
    assert_eq!(gives_way(3, 60, &at_work), [2], "one slot more than those two");
    assert_eq!(gives_way(4, 60, &at_work), [1, 2]);
    let above = GangAtWork { priority: Priority(70), ..spares_two };
    assert_eq!(gives_way(3, 60, &[above.clone(), gang(2, 40, &[3])]), [2]);
    assert_eq!(gives_way(4, 60, &[above, gang(2, 40, &[3])]), []);
}

#[test]
fn nobody_gives_way_while_others_are_leaving_or_for_who_would_not_get_the_slots() {
    let at_work = [gang(1, 40, &[0]), gang(2, 40, &[1])];
    let nodes = [node(1, &[true; 4])];
    let ask_with =
        |coming: &Coming, queue: &[Request]| asked((queue, 60), &nodes, coming, &at_work);
    let of = |node, indices: &[i32]| indices.iter().map(|it| slot(node, *it)).collect();
    let ended = Coming { slots: of(1, &[2]), preempted: BTreeSet::new() };
    assert_eq!(ask_with(&ended, &[ask(1)]), [], "a slot is about to be free");
    assert_eq!(ask_with(&ended, &[ask(2)]), [2]);
    let leaving = Coming { slots: of(1, &[2]), preempted: of(1, &[2]) };
    assert_eq!(ask_with(&leaving, &[ask(2)]), [], "one after the other");
    let elsewhere = Coming { slots: of(7, &[0]), preempted: of(7, &[0]) };
    assert_eq!(ask_with(&elsewhere, &[ask(1)]), [2], "nodes of others");
    assert_eq!(ask_with(&Coming::default(), &[ask(4), ask(1)]), [], "the first would keep them");
    assert_eq!(
        ask_with(&Coming::default(), &[ask(5), ask(1)]),
        [2],
        "one that never fits keeps none"
    );
    assert_eq!(ask_with(&Coming::default(), &[]), []);
}

#[test]
fn who_gets_slots_of_preempted_jobs_says_so_and_nobody_else() {
    let nodes = [node(1, &[true; 4])];
    let coming: BTreeSet<SlotKey> = [0, 1, 2].map(|index| slot(1, index)).into();
    let preempted: BTreeSet<SlotKey> = [0, 1].map(|index| slot(1, index)).into();
    let queue = [ask(2), ask(1), ask(1)];
    let told = |coming: &Coming| -> Vec<String> {
        let mut decisions = schedule(&queue, &nodes).decisions;
        expect_preempted(&queue, &nodes, coming, &mut decisions);
        let sentence = |decision: &Decision| match decision {
            Decision::Waits(reason) => {
                assert!(reason.is_for_free_slots());
                reason.to_string()
            }
            Decision::Placed(_) => panic!("nothing is free"),
        };
        decisions.iter().map(sentence).collect()
    };
    let waits = "waits for 2 free slots of 1 cpu core and 512 MiB: 0 are free";
    let slots = coming.clone();
    let with = told(&Coming { slots: coming, preempted });
    assert_eq!(with[0], format!("{waits}; 2 slots are being given up by preempted jobs"));
    assert!(with[1..].iter().all(|text| text.ends_with("0 are free")), "{with:?}");
    assert_eq!(told(&Coming { slots, preempted: BTreeSet::new() })[0], waits);
}

#[test]
fn a_gang_that_gives_way_says_to_whom_as_far_as_its_owner_may_know() {
    let own = GivesWay { to: Some("urgent"), priority: Priority(80), preemptions: 1 };
    let told = "preempted: gives its slots to job urgent of priority 80 (1 of 3 preemptions)";
    assert_eq!(own.to_string(), told);
    let other = GivesWay { to: None, ..own }.to_string();
    assert!(other.contains("to a job of another project, of priority 80 (1"), "{other}");
}

/// A job of the model below.
#[derive(Debug, Clone)]
struct Modelled {
    arrives: usize,
    priority: u32,
    ranks: u32,
    work: u32,
    /// Left of `work`. All of it again after each preemption: the worst case, a job without a checkpoint.
    left: u32,
    preemptions: u32,
    is_leaving: bool,
    slots: Vec<i32>,
}

fn any_job() -> impl Strategy<Value = Modelled> {
    (0..12usize, 0..4u32, 1..=4u32, 1..5u32).prop_map(|(arrives, priority, ranks, work)| Modelled {
        arrives,
        priority,
        ranks,
        work,
        left: work,
        preemptions: 0,
        is_leaving: false,
        slots: vec![],
    })
}

fn works(jobs: &[Modelled]) -> Vec<(usize, GangAtWork)> {
    let is_at_work = |job: &Modelled| !job.slots.is_empty() && !job.is_leaving;
    let of = |(place, job): (usize, &Modelled)| {
        let gang = gang(place as u128, job.priority, &job.slots);
        (place, GangAtWork { preemptions: job.preemptions, ..gang })
    };
    jobs.iter().enumerate().filter(|(_, job)| is_at_work(job)).map(of).collect()
}

/// One look at the queue, as the server's.
fn look(jobs: &mut [Modelled], turn: usize) -> Result<(), TestCaseError> {
    let slots_of = |jobs: &[Modelled], is_counted: fn(&Modelled) -> bool| -> BTreeSet<i32> {
        jobs.iter().filter(|job| is_counted(job)).flat_map(|job| job.slots.clone()).collect()
    };
    let held = slots_of(jobs, |_| true);
    let nodes = [node(1, &[0, 1, 2, 3].map(|index| held.contains(&index)))];
    let waits = |job: &Modelled| job.arrives <= turn && job.slots.is_empty() && 0 < job.left;
    let mut queue: Vec<usize> = (0..jobs.len()).filter(|&place| waits(&jobs[place])).collect();
    queue.sort_by_key(|&place| (Reverse(jobs[place].priority), jobs[place].arrives, place));
    let requests: Vec<Request> = queue.iter().map(|&place| ask(jobs[place].ranks)).collect();
    let mut is_placing = false;
    for (&place, decision) in queue.iter().zip(schedule(&requests, &nodes).decisions) {
        if let Decision::Placed(places) = decision {
            jobs[place].slots = places.iter().map(|it| it.index).collect();
            is_placing = true;
        }
    }
    if is_placing {
        return Ok(());
    }
    let leaving: BTreeSet<SlotKey> =
        slots_of(jobs, |job| job.is_leaving).into_iter().map(|index| slot(1, index)).collect();
    let coming = Coming { slots: leaving.clone(), preempted: leaving };
    let (places, at_work): (Vec<usize>, Vec<GangAtWork>) = works(jobs).into_iter().unzip();
    for (count, &waiting) in queue.iter().enumerate() {
        let of = (&requests[..=count], Priority(jobs[waiting].priority));
        let chosen = preempt(of, &nodes, &coming, &at_work);
        for (&place, gang) in places.iter().zip(&at_work) {
            if chosen.contains(&gang.attempt) {
                prop_assert!(jobs[place].priority < jobs[waiting].priority);
                jobs[place].is_leaving = true;
                jobs[place].preemptions += 1;
                prop_assert!(jobs[place].preemptions <= MAX_PREEMPTIONS);
            }
        }
        if !chosen.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Long enough for all jobs one after the other, as often as they may be preempted.
const TURNS: usize = 400;

proptest! {
    /// What gives way is of lower priority, within its budget, lets the job begin, and none of it could be spared; nothing gives
    /// way only if all of it would not help, or nothing has to.
    #[test]
    fn exactly_what_a_job_needs_gives_way(
        sizes in prop::collection::vec((0..4u32, 1..4usize, 0..=MAX_PREEMPTIONS, any::<bool>()), 1..6),
        free in 0..3usize, wanted in 1..9u32, priority in 0..5u32,
    ) {
        let (mut at_work, mut next) = (Vec::new(), 0);
        for (number, (priority, size, preemptions, is_nearly_done)) in (1..).zip(sizes) {
            let slots: Vec<i32> = (next..).take(size).collect();
            next += i32::try_from(size).unwrap();
            let is_nearly_done = is_nearly_done && number % 2 == 0;
            at_work.push(GangAtWork { preemptions, is_nearly_done, ..gang(number, priority, &slots) });
        }
        let held: Vec<bool> = at_work.iter().flat_map(|it| &it.slots).map(|_| true).chain(vec![false; free]).collect();
        let nodes = [node(1, &held)];
        let chosen = preempt((&[ask(wanted)], Priority(priority)), &nodes, &Coming::default(), &at_work);
        let may = |it: &GangAtWork| it.priority < Priority(priority) && !it.is_nearly_done && it.preemptions < MAX_PREEMPTIONS;
        let count = |is_counted: &dyn Fn(&GangAtWork) -> bool| -> usize {
            at_work.iter().filter(|it| is_counted(it)).map(|it| it.slots.len()).sum()
        };
        let wanted = wanted as usize;
        let comes = free + count(&|it| it.is_nearly_done);
        if chosen.is_empty() {
            prop_assert!(wanted <= comes || comes + count(&may) < wanted);
            return Ok(());
        }
        prop_assert!(comes < wanted, "it begins without");
        let gained = count(&|it| chosen.contains(&it.attempt));
        prop_assert!(wanted <= comes + gained);
        for it in at_work.iter().filter(|it| chosen.contains(&it.attempt)) {
            prop_assert!(may(it), "{it:?}");
            prop_assert!(comes + gained - it.slots.len() < wanted, "{it:?} could be spared");
        }
    }

    /// However jobs come, each is preempted within its budget, by nobody of its own priority, and all come to their end.
    #[test]
    fn nobody_is_preempted_for_ever(mut jobs in prop::collection::vec(any_job(), 1..12)) {
        for turn in 0..TURNS {
            for job in &mut jobs {
                if job.is_leaving {
                    (job.is_leaving, job.left) = (false, job.work);
                    job.slots.clear();
                } else if !job.slots.is_empty() {
                    job.left -= 1;
                    if job.left == 0 {
                        job.slots.clear();
                    }
                }
            }
            look(&mut jobs, turn)?;
        }
        prop_assert!(jobs.iter().all(|job| job.left == 0), "{jobs:?}");
    }
}
