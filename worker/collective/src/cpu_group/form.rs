//! How a group forms: the ranks of a node meet in its control pages, their leader gives the memory
//! its size and writes the plan, the others compare it with their own, and all wait for all. Then ranks connect
//! to those of other nodes, and the leaders compare their plans.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lockstep_shm::{CONTROL_BYTES, FlightRecord, Found, Mapping, NodeArenas};

use crate::{
    Board, Formed, GroupError, Interrupt, Phase, Plan, ProcessGroup as _, Topology,
    control::{Broken, Control, checked_extent},
    error::Moment,
    net::{self, Mesh, Network},
    op::{Kind, Op},
    verdict::{Report, Verdict, mask_of, mismatch, ranks_of},
};

use super::{
    CpuGroup, FormedLanes, Stage,
    memory::{board_offset, follow, lead, shape, size_memory, without_numbers},
};

/// How long a waiter looks before it sleeps, when every thread has a core of its own.
const SPIN: Duration = Duration::from_micros(20);
/// Round of the formation on a node.
const FORMATION: u32 = 1;

/// What a rank brings to join a group.
#[derive(Debug)]
pub struct Join<'a> {
    /// The memory of its node's ranks; their leader gives it its size.
    pub memory: BorrowedFd<'a>,
    /// This rank.
    pub rank: usize,
    /// Who shares a node.
    pub topology: Topology,
    /// How to reach the ranks of other nodes, if there are any.
    pub network: Option<Network>,
    /// Bounds every single wait in the group.
    pub timeout: Duration,
    /// Bounds the formation: at least as long.
    pub formation: Duration,
    /// Threads of each rank that may run at once. If the node's ranks have more than there are
    /// cores, nobody looks for what it waits for without sleeping.
    pub threads_per_rank: usize,
    /// Where the rank says how far it is.
    pub record: Option<Arc<FlightRecord>>,
    /// Ends the formation, and whatever comes of it, from outside.
    pub interrupt: Interrupt,
}

impl<'a> Join<'a> {
    /// Of `world` ranks that share the pages of one node, each with a thread that computes and one
    /// that communicates.
    ///
    /// # Panics
    /// If there are no ranks, or too many.
    pub fn one_node(memory: BorrowedFd<'a>, rank: usize, world: usize, timeout: Duration) -> Self {
        let topology = Topology::one_node(world);
        let (network, threads_per_rank, record, formation) = (None, 2, None, timeout);
        let interrupt = Interrupt::default();
        Self {
            memory,
            rank,
            topology,
            network,
            timeout,
            formation,
            threads_per_rank,
            record,
            interrupt,
        }
    }
}

impl CpuGroup {
    /// Joins a group.
    ///
    /// # Errors
    /// [`GroupError::FormationTimeout`] names who did not come; [`GroupError::PlanMismatch`] the
    /// first parameter that two ranks see differently; [`GroupError::Unreachable`] and
    /// [`GroupError::StaleGeneration`] whoever cannot be connected to.
    ///
    /// # Panics
    /// If the plan has other nodes than the topology, there is no such rank, or a group of several
    /// nodes has no network.
    pub fn form(join: &Join<'_>, plan: &Plan) -> Result<Formed, GroupError> {
        let (FormedLanes { mut groups, arena, board }, _) = Self::form_all(join, plan, 1, &[])?;
        Ok(Formed { group: groups.remove(0), arena, board })
    }

    /// Joins several groups of the same ranks: `lanes` of the first plan, which share its arenas, so that as many
    /// threads may reduce different buckets at one time; and one of each plan `beside`, with arenas of its own. Each
    /// group has connections and an order of collectives of its own.
    ///
    /// The board is the first lane's.
    ///
    /// # Errors
    /// As [`CpuGroup::form`].
    ///
    /// # Panics
    /// As [`CpuGroup::form`]; and if there are no lanes, or more than 255 groups.
    pub fn form_all(
        join: &Join<'_>,
        plan: &Plan,
        lanes: usize,
        beside: &[Plan],
    ) -> Result<(FormedLanes, Vec<Formed>), GroupError> {
        assert!(0 < lanes && lanes + beside.len() < 256, "{lanes} lanes, {} beside", beside.len());
        if let Some(record) = &join.record {
            record.forget_lanes();
        }
        let started = Instant::now();
        let mut plans = vec![plan.clone()];
        plans.resize_with(lanes, || without_numbers(plan));
        plans.extend_from_slice(beside);
        let mut place =
            Place { lane: 0, first_byte: 0, started, deadline: started + join.formation };
        let mut formed = Vec::new();
        let mut arenas = Vec::new().into_iter();
        for own in &plans {
            let shared = if formed.is_empty() { lanes } else { 1 };
            let (mut one, bytes, lent) = Self::form_at(place, join, (&plans, own), shared)?;
            if formed.is_empty() {
                arenas = lent.into_iter();
            } else if formed.len() < lanes {
                one.group.arenas = arenas.next().ok_or(GroupError::Aborted { by: None })?;
                one.group.plan = plan.clone();
            }
            if 1 < plans.len() {
                // Nobody knocks for the next one before all are in this one.
                one.group.barrier()?;
            }
            formed.push(one);
            place.lane += 1;
            place.first_byte += bytes;
        }
        let beside = formed.split_off(lanes);
        let mut lanes = formed.into_iter();
        let Formed { group, arena, board } =
            lanes.next().ok_or(GroupError::Aborted { by: None })?;
        let mut groups = vec![group];
        groups.extend(lanes.map(|formed| formed.group));
        Ok((FormedLanes { groups, arena, board }, beside))
    }

    fn form_at(
        place: Place,
        join: &Join<'_>,
        (plans, plan): (&[Plan], &Plan),
        lanes: usize,
    ) -> Result<(Formed, usize, Vec<NodeArenas>), GroupError> {
        let Place { deadline, .. } = place;
        let Join { memory, rank, ref topology, ref network, timeout, threads_per_rank, .. } = *join;
        let sizes = topology.node_sizes();
        assert!(plan.nodes == sizes, "a plan for {:?}, the topology is {sizes:?}", plan.nodes);
        assert!(topology.node_count() == 1 || network.is_some(), "several nodes need a network");
        let node = topology.node_of(rank);
        let ranks = topology.members(node);
        let early = Mapping::of_part(memory, place.first_byte, CONTROL_BYTES, CONTROL_BYTES)
            .map_err(|error| GroupError::io("mapping the group's control pages", error))?;
        let early =
            Control::new(Arc::new(early), ranks.clone(), spin(ranks.len() * threads_per_rank));
        if !early.claim(rank) {
            let taken = io::Error::other(format!("rank {rank} has already joined"));
            return Err(GroupError::io("joining the group", taken));
        }
        join.interrupt.watch(&early);
        let leaving = LeaveOnError { control: Some(early.clone()), rank };
        let map = if rank == topology.leader(node) {
            if place.lane == 0 {
                size_memory(memory, &ranks, plans)?;
            }
            lead(memory, place.first_byte, &early, &ranks, plan)?
        } else {
            let extent = early
                .published(deadline)
                .map_err(|broken| not_formed(&early, rank, broken, place))?;
            follow(memory, place.first_byte, &early, rank, plan, checked_extent(extent)?)?
        };
        let bytes = map.bytes();
        let map = Arc::new(map);
        let control = early.in_map(Arc::clone(&map));
        let local = rank - ranks.start;
        let (arena, mut lent) = map
            .take_floats(shape(plan, &ranks), local, lanes)
            .map_err(|error| GroupError::io("taking the group's arenas", error))?;
        let board = Board::new(map, board_offset(plan), plan.grain_rows, plan.grain_columns);
        let op = Op::without_numbers(Kind::Formation);
        control.enter(rank, FORMATION, op.words(Phase::Entering));
        control
            .wait_all(FORMATION, Duration::ZERO, deadline)
            .map_err(|broken| not_formed(&control, rank, broken, place))?;
        let mesh = connect(place, join, &control)?;
        let group = Self {
            rank,
            node,
            topology: topology.clone(),
            plan: plan.clone(),
            timeout,
            control,
            arenas: lent.remove(0),
            mesh,
            board: board.clone(),
            record: join.record.clone(),
            lane: place.lane,
            round: FORMATION,
            met: Instant::now(),
            sequence: 0,
            turn: 0,
            found: Found::default(),
            found_ranks: 0,
            split: None,
            failed: None,
            has_left: false,
        };
        // From here on dropping the group tells the others.
        leaving.stay();
        let group = group.agreed(op)?;
        tracing::debug!(rank, lane = place.lane, plan = plan.hash(), "formed a group");
        Ok((Formed { group, arena, board }, bytes, lent))
    }

    /// The leaders compare their plans.
    fn agreed(mut self, op: Op) -> Result<Self, GroupError> {
        if self.mesh.is_none() {
            return Ok(self);
        }
        let hash = self.plan.hash().into_bytes();
        let hashes = self.exchange_notes(op, Stage::Notes, hash)?;
        // All leaders see the same hashes, so all of them go on or none.
        if hashes.iter().any(|hash| *hash != hashes[0]) {
            let plans = self.exchange_notes(op, Stage::Details, self.plan.to_text())?;
            let plans: Result<Vec<Plan>, _> =
                plans.iter().map(|plan| serde_json::from_slice(plan)).collect();
            let plans =
                plans.map_err(|error| GroupError::io("reading a plan", io::Error::from(error)))?;
            let differs = |plan: &Plan| plans[0].first_difference(plan);
            let found = (0..).zip(&plans).find_map(|(node, plan)| Some((node, differs(plan)?)));
            if let Some((node, difference)) = found {
                let rank = self.topology.leader(node);
                let report = Report {
                    what: difference.what,
                    rank_zero: difference.ours,
                    other: difference.theirs,
                };
                self.control.give_up(&Verdict::PlanMismatch { rank, report: report.clone() });
                // The others have seen it themselves.
                self.failed = Some(mismatch(rank, report.clone()));
                return Err(mismatch(rank, report));
            }
        }
        self.meet(op, Phase::Leaving)?;
        Ok(self)
    }
}

/// Which of several groups, where in the memory it lies, and until when it must have formed.
#[derive(Debug, Clone, Copy)]
struct Place {
    lane: u8,
    first_byte: usize,
    started: Instant,
    deadline: Instant,
}

/// Tells the others at once when this rank cannot join.
struct LeaveOnError {
    control: Option<Control>,
    rank: usize,
}

impl LeaveOnError {
    fn stay(mut self) {
        self.control = None;
    }
}

impl Drop for LeaveOnError {
    fn drop(&mut self) {
        if let Some(control) = &self.control {
            control.give_up(&Verdict::Left { rank: self.rank });
        }
    }
}

fn not_formed(control: &Control, rank: usize, broken: Broken, place: Place) -> GroupError {
    let waited = place.started.elapsed();
    match broken {
        Broken::TimedOut { missing } => {
            let mask = mask_of(&missing);
            control.give_up(&Verdict::TimedOut { rank, missing: mask });
            GroupError::FormationTimeout { missing, waited }
        }
        Broken::Marked { missing } => match control.verdict() {
            Some(Verdict::TimedOut { missing: theirs, .. }) => {
                let missing = if missing.is_empty() { ranks_of(theirs) } else { missing };
                GroupError::FormationTimeout { missing, waited }
            }
            Some(verdict) => verdict.error(rank, || {
                let what = "the formation of the group".to_owned();
                let (lane, phase) = (place.lane, Phase::Entering);
                (Moment { what, sequence: 0, lane, phase }, waited)
            }),
            None => GroupError::Aborted { by: None },
        },
    }
}

/// The connections to other nodes, if there are any.
fn connect(place: Place, join: &Join<'_>, control: &Control) -> Result<Option<Mesh>, GroupError> {
    let Join { rank, topology, network: Some(network), .. } = join else { return Ok(None) };
    if topology.node_count() == 1 {
        return Ok(None);
    }
    let until = (place.started, place.deadline);
    let joined = net::join(*rank, place.lane, topology, (network, control), until);
    joined.map(Some).map_err(|error| not_connected(control, *rank, error, place))
}

/// Whom a rank could not reach, its node hears; and who heard it, says that.
fn not_connected(control: &Control, rank: usize, error: GroupError, place: Place) -> GroupError {
    if control.is_given_up() {
        return not_formed(control, rank, Broken::Marked { missing: Vec::new() }, place);
    }
    let missing = match &error {
        GroupError::FormationTimeout { missing, .. } => missing.clone(),
        GroupError::Unreachable { rank, .. } | GroupError::StaleGeneration { rank, .. } => {
            vec![*rank]
        }
        _ => return error,
    };
    let mask = mask_of(&missing);
    control.give_up(&Verdict::TimedOut { rank, missing: mask });
    error
}

fn spin(threads: usize) -> Duration {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if threads <= cores { SPIN } else { Duration::ZERO }
}
