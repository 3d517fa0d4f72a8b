//! A small fleet: nodes that die, are cut off, wake late and lie, over a fixed set of seeds. The control plane here is only
//! the pure core; the processes are simulated, so that the test knows what really lives where.
#![expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::{
    AttemptOutcome, DeviceKind, Generation, JobState, NodeId, Phase, Rank, RankCount, RankExit,
    SlotSpec, Step, Transport,
};
use lockstep_core::{
    Attempt, Decision, Effect, Event, Gang, Job, JobEvent, LeaseTerms, Member, NodeLoss, NodeOffer,
    Outlook, Place, Placed, Readiness, Request, RetryBudget, SlotOffer, Stage, StepError, Terms,
    Timeouts, Word, schedule,
};
use uuid::Uuid;

const SEEDS: u64 = 120;
const TURNS: usize = 200;
const NODES: u128 = 3;
const SLOTS: i32 = 2;
const JOBS: usize = 6;
/// How long a gang over several nodes may take to say where its ranks listen.
const RENDEZVOUS: TimeDelta = TimeDelta::seconds(4);
/// One turn of the simulated clock.
const TURN: TimeDelta = TimeDelta::milliseconds(700);

/// SplitMix64: the sequence of a seed is the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }
}

/// Which attempt of which job.
type Key = (usize, Generation);
/// Which rank got which slot of which node.
type Places = Vec<(Rank, NodeId, i32)>;

/// What really runs on a machine, whatever anyone believes.
#[derive(Default)]
struct Machine {
    is_cut_off: bool,
    cut_off_since: Option<DateTime<Utc>>,
    /// Live processes: which attempt's rank lives in which slot.
    processes: BTreeMap<(Key, Rank), i32>,
    /// Words that have not reached the server.
    outbox: Vec<(Key, Word)>,
}

/// A rank that can be started, if the others are ready, too.
const READY: Readiness = Readiness { listens: true, is_prepared: true };

struct Fleet {
    dice: Dice,
    now: DateTime<Utc>,
    terms: Terms,
    machines: BTreeMap<NodeId, Machine>,
    leases: BTreeMap<NodeId, DateTime<Utc>>,
    jobs: Vec<(Job, Request)>,
    attempts: BTreeMap<Key, (Attempt, Places)>,
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let [heartbeat, lease, orphan] = [1, 3, 20].map(Duration::from_secs);
        let terms = Terms {
            lease: LeaseTerms::new(heartbeat, lease, orphan).unwrap(),
            timeouts: Timeouts::from_collective(Duration::from_secs(4)),
            can_pay: false,
        };
        let mut dice = Dice(seed);
        let now = DateTime::UNIX_EPOCH;
        let budget = RetryBudget { user: 1, infrastructure: 4 };
        let jobs = (0..JOBS).map(|_| {
            let ranks = 1 + u32::try_from(dice.roll(3)).unwrap();
            let (state, generation) = (JobState::Queued, Generation(0));
            let job = Job { state, generation, budget, stopping: None, preemptions: 0 };
            (
                job,
                Request {
                    ranks: RankCount::Fixed(ranks),
                    slot: SlotSpec::default(),
                    transport: Transport::Auto,
                },
            )
        });
        Self {
            jobs: jobs.collect(),
            dice,
            now,
            terms,
            machines: (1..=NODES).map(|number| (node(number), Machine::default())).collect(),
            leases: (1..=NODES).map(|number| (node(number), terms.lease.expiry(now))).collect(),
            attempts: BTreeMap::new(),
        }
    }

    /// The server hears an event and carries out what follows.
    fn hear(&mut self, key: Key, event: Event) -> Result<(), StepError> {
        let Some((attempt, _)) = self.attempts.get_mut(&key) else { return Ok(()) };
        let before = attempt.clone();
        let (next, effects) = before.clone().step(event, self.terms, self.now)?;
        if let Stage::Ended(outcome) = before.stage {
            assert_eq!(next.stage, Stage::Ended(outcome), "what is ended stays so");
        }
        *attempt = next;
        for effect in effects {
            if let Effect::Over { outcome, blame } = effect {
                let (job, _) = &mut self.jobs[key.0];
                let event = JobEvent::AttemptEnded {
                    generation: key.1,
                    outcome,
                    blame,
                    outlook: Outlook::Open,
                };
                *job = job.step(event).unwrap().0;
            }
        }
        Ok(())
    }

    fn keys(&self) -> Vec<Key> {
        self.attempts.keys().copied().collect()
    }

    /// What the server does without being asked: leases, time, placement.
    fn reconcile(&mut self) {
        for (node, expires_at) in self.leases.clone() {
            if self.now < expires_at {
                continue;
            }
            let is_long_ago = self.terms.lease.gone_at(expires_at) <= self.now;
            let loss =
                if is_long_ago { NodeLoss::OrphanGracePassed } else { NodeLoss::LeaseExpired };
            self.lose_node(node, loss);
        }
        for key in self.keys() {
            self.hear(key, Event::Tick).unwrap();
        }
        self.place();
    }

    fn lose_node(&mut self, node: NodeId, loss: NodeLoss) {
        for key in self.keys() {
            self.hear(key, Event::NodeLost { node, loss }).unwrap();
        }
    }

    fn held_slots(&self) -> BTreeSet<(NodeId, i32)> {
        let all = self.attempts.values().flat_map(|(attempt, places)| {
            let held = places.iter().filter(|(rank, _, _)| attempt.holds_slot(*rank));
            held.map(|(_, node, slot)| (*node, *slot))
        });
        all.collect()
    }

    fn place(&mut self) {
        let held = self.held_slots();
        let live = self.leases.iter().filter(|(_, expires_at)| self.now < **expires_at);
        let nodes: Vec<_> = live
            .map(|(&node, _)| NodeOffer {
                node,
                name: node.to_string(),
                is_avoided: false,
                slots: (0..SLOTS)
                    .map(|index| SlotOffer {
                        device: DeviceKind::Cpu,
                        index,
                        cores: 1,
                        memory_mib: 512,
                        is_held: held.contains(&(node, index)),
                    })
                    .collect(),
            })
            .collect();
        let queued: Vec<usize> =
            (0..self.jobs.len()).filter(|&i| self.jobs[i].0.state == JobState::Queued).collect();
        let requests: Vec<_> = queued.iter().map(|&i| self.jobs[i].1.clone()).collect();
        for (job, decision) in queued.into_iter().zip(schedule(&requests, &nodes).decisions) {
            if let Decision::Placed(places) = decision {
                assert_eq!(
                    places.len(),
                    requests.len().min(1) * self.jobs[job].1.ranks.max() as usize
                );
                self.begin(job, &places);
            }
        }
    }

    fn begin(&mut self, job: usize, places: &[Placed]) {
        let spans = places.iter().any(|place| 0 < place.memory_index);
        let rendezvous_by = spans.then(|| self.now + RENDEZVOUS);
        let places: Places = places.iter().map(|p| (p.rank, p.node, p.index)).collect();
        let before = self.jobs[job].0;
        let (next, _) = before.step(JobEvent::Placed).unwrap();
        assert!(before.generation < next.generation, "a placement raises the fence");
        self.jobs[job].0 = next;
        let members = places.iter().map(|(rank, node, _)| {
            let (node_name, readiness) = (node.to_string(), Readiness::default());
            let (place, process, first_generation) = (Place::Held, rank.0, next.generation);
            let member = Member {
                node: *node,
                node_name,
                place,
                readiness,
                process,
                first_generation,
                // Nobody is silent here for so long that it matters.
                node_seen_at: DateTime::<Utc>::MAX_UTC,
                news: None,
            };
            (*rank, member)
        });
        let gang = Gang {
            generation: next.generation,
            began_at: self.now,
            lease_expires_at: self.terms.lease.expiry(self.now),
            members: members.collect(),
            ranks: RankCount::Fixed(u32::try_from(places.len()).unwrap()),
            rendezvous_by,
            suspect: None,
            transport: Transport::Auto,
            has_copies: false,
            has_progressed: false,
            has_state_from: next.generation,
            is_planned: false,
            next_process: i32::try_from(places.len()).unwrap(),
            shunned: BTreeSet::new(),
        };
        self.attempts.insert((job, next.generation), (Attempt::placed(gang), places));
    }

    /// A machine that reaches the server says what it has to say and makes its processes those it should have.
    fn converse(&mut self, id: NodeId) {
        self.leases.insert(id, self.terms.lease.expiry(self.now));
        for (key, word) in std::mem::take(&mut self.machines.get_mut(&id).unwrap().outbox) {
            let said = Event::Said { node: id, generation: key.1, word };
            // A refusal is an answer too; the processes are put right below.
            let _refused = self.hear(key, said);
        }
        let mut wanted = BTreeSet::new();
        for (key, (attempt, places)) in &self.attempts {
            if matches!(attempt.stage, Stage::Ended(_)) {
                continue;
            }
            for (rank, _, slot) in
                places.iter().filter(|(rank, node, _)| *node == id && attempt.holds_slot(*rank))
            {
                wanted.insert((*key, *rank));
                let machine = self.machines.get_mut(&id).unwrap();
                let is_met = attempt.gang.members.values().all(|it| it.readiness == READY);
                if attempt.gang.rendezvous_by.is_some() && !is_met {
                    machine.outbox.push((*key, Word::RankListens { rank: *rank }));
                    machine.outbox.push((*key, Word::Prepared));
                    continue;
                }
                let is_new = machine.processes.insert((*key, *rank), *slot).is_none();
                if is_new {
                    machine.outbox.push((*key, Word::RankStarted { rank: *rank }));
                }
                machine.outbox.push((*key, Word::Renewed));
            }
        }
        for key in self.keys() {
            // Talk is instantaneous here, so that absence can be said at once.
            let machine = &self.machines[&id];
            if !machine.processes.keys().any(|(other, _)| *other == key) {
                let said = Event::Said { node: id, generation: key.1, word: Word::Absent };
                let _not_a_member = self.hear(key, said);
            }
        }
        let machine = self.machines.get_mut(&id).unwrap();
        let unwanted: Vec<_> =
            machine.processes.keys().filter(|p| !wanted.contains(*p)).copied().collect();
        for (key, rank) in unwanted {
            machine.processes.remove(&(key, rank));
            machine.outbox.push((key, exit(rank, None, Some(9))));
        }
    }

    /// One thing happens somewhere.
    fn disturb(&mut self) {
        let id = node(1 + u128::from(self.dice.roll(3)));
        let (kind, pick) = (self.dice.roll(24), self.dice.roll(1000));
        let now = self.now;
        let keys = self.keys();
        let machine = self.machines.get_mut(&id).unwrap();
        let processes: Vec<_> = machine.processes.keys().copied().collect();
        let process = (!processes.is_empty()).then(|| processes[pick as usize % processes.len()]);
        match kind {
            0 => {
                machine.is_cut_off = true;
                machine.cut_off_since.get_or_insert(now);
            }
            1..=4 => {
                machine.is_cut_off = false;
                machine.cut_off_since = None;
            }
            5 => {
                // The agent dies with its ranks and comes back under a new boot id.
                machine.processes.clear();
                machine.outbox.clear();
                if !machine.is_cut_off {
                    self.lose_node(id, NodeLoss::Restarted);
                }
            }
            6 => {
                // A rank dies by itself.
                if let Some((key, rank)) = process {
                    machine.processes.remove(&(key, rank));
                    machine.outbox.push((key, exit(rank, None, Some(9))));
                }
            }
            7..=9 => {
                // All ranks of one attempt finish.
                if let Some((key, _)) = process {
                    machine.processes.retain(|(other, _), _| *other != key);
                    machine.outbox.push((key, Word::Finished));
                }
            }
            10 if !keys.is_empty() => {
                // A lie: a word about an attempt that this machine may have nothing to do with, under any fence, that
                // does not claim a death (a node is believed about its own processes; that is what a node is).
                let key = keys[pick as usize % keys.len()];
                let word = if pick % 2 == 0 {
                    Word::Progressed
                } else {
                    Word::RankStarted { rank: Rank(1) }
                };
                machine.outbox.push((key, word));
            }
            11 => {
                let job = pick as usize % JOBS;
                let (next, effects) = self.jobs[job].0.step(JobEvent::CancelRequested).unwrap();
                self.jobs[job].0 = next;
                if !effects.is_empty() {
                    self.hear((job, next.generation), Event::StopRequested).unwrap();
                }
            }
            _ => {}
        }
    }

    fn turn(&mut self) {
        self.now += TURN;
        self.disturb();
        self.check();
        for id in self.machines.keys().copied().collect::<Vec<_>>() {
            let machine = self.machines.get_mut(&id).unwrap();
            if machine.is_cut_off {
                // An agent that no server answers stops its ranks after the grace. (Counted from the cut, which is
                // before the lease ran out: that is why silence proves anything.)
                let grace = TimeDelta::from_std(self.terms.lease.orphan_grace()).unwrap();
                if machine.cut_off_since.is_some_and(|since| since + grace <= self.now) {
                    for (key, rank) in std::mem::take(&mut machine.processes).into_keys() {
                        machine.outbox.push((key, exit(rank, None, Some(9))));
                    }
                }
            } else {
                self.converse(id);
            }
            self.check();
        }
        self.reconcile();
        self.check();
    }

    fn check(&self) {
        let mut slots = BTreeMap::new();
        for (id, machine) in &self.machines {
            for ((key, rank), slot) in &machine.processes {
                let other = slots.insert((*id, *slot), (key, rank));
                assert_eq!(other, None, "two processes live in slot {slot} of {id}");
                let (attempt, _) = &self.attempts[key];
                assert!(attempt.holds_slot(*rank), "a process lives in a slot that counts as free");
            }
        }
        for (i, (job, _)) in self.jobs.iter().enumerate() {
            let at_work: Vec<_> = self
                .attempts
                .iter()
                .filter(|(key, (attempt, _))| {
                    key.0 == i && !matches!(attempt.stage, Stage::Ended(_))
                })
                .map(|(key, _)| key.1)
                .collect();
            let expected: &[Generation] = match job.state {
                JobState::Active | JobState::Cancelling => &[job.generation],
                _ => &[],
            };
            assert_eq!(at_work, expected, "job {i} is {}", job.state);
            let count = self.attempts.keys().filter(|key| key.0 == i).count();
            assert_eq!(count, usize::try_from(job.generation.0).unwrap());
            assert!(count <= 1 + 1 + 4, "more attempts than budgets allow");
        }
    }
}

fn exit(rank: Rank, code: Option<i32>, signal: Option<i32>) -> Word {
    Word::RankExited {
        process: rank.0,
        exit: RankExit {
            code,
            signal,
            phase: Phase::Forward,
            step: Step(3),
            exceeded_memory_mib: None,
        },
    }
}

#[test]
fn whatever_nodes_do_no_slot_is_given_twice_and_every_job_comes_to_its_end() {
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut fleet = Fleet::new(seed);
            for _ in 0..TURNS {
                fleet.turn();
            }
            // Then the world calms down and everyone is told to end.
            for machine in fleet.machines.values_mut() {
                machine.is_cut_off = false;
            }
            for job in 0..JOBS {
                let (next, effects) = fleet.jobs[job].0.step(JobEvent::CancelRequested).unwrap();
                fleet.jobs[job].0 = next;
                if !effects.is_empty() {
                    fleet.hear((job, next.generation), Event::StopRequested).unwrap();
                }
            }
            for _ in 0..20 {
                fleet.now += TURN;
                for number in 1..=NODES {
                    fleet.converse(node(number));
                }
                fleet.reconcile();
                fleet.check();
            }
            assert!(fleet.jobs.iter().all(|(job, _)| job.state.is_final()), "a job never ended");
            assert_eq!(fleet.held_slots(), BTreeSet::new(), "a slot was never freed");
            fleet
        });
        let fleet = run.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            panic!("seed {seed}: {text}")
        });
        for (job, _) in &fleet.jobs {
            *outcomes.entry(job.state.to_string()).or_default() += 1;
        }
        for (attempt, _) in fleet.attempts.values() {
            if let Stage::Ended(outcome) = attempt.stage {
                *outcomes.entry(format!("attempt {outcome}")).or_default() += 1;
            }
        }
    }
    for seen in AttemptOutcome::ALL {
        assert!(
            outcomes.contains_key(&format!("attempt {seen}")),
            "the seeds reach {seen}: {outcomes:?}"
        );
    }
    for seen in [JobState::Succeeded, JobState::Failed, JobState::Cancelled] {
        assert!(outcomes.contains_key(seen.as_str()), "the seeds reach {seen}: {outcomes:?}");
    }
}
