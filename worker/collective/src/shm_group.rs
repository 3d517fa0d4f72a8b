//! The process group of one node: collectives in place, in shared pages.
//!
//! Every collective on floats has two rounds. After the first all ranks have leased the range; rank
//! r then adds up its slice of it from all arenas and writes the sum to all arenas, which nobody
//! else touches. After the second round the range belongs to its owner again. No byte is copied.

use std::{
    io, mem,
    ops::Range,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use lockstep_shm::{
    ArenaShape, CONTROL_BYTES, FlightRecord, Found, Lease, Mapping, OwnArena, Summer, page_aligned,
    size_group_memory,
};
use serde::{Deserialize, Serialize};

use crate::{
    Ballot, Board, GroupError, MAX_WORLD, Plan, ProcessGroup, SumOrder, Tally,
    control::{Broken, Control, EXCHANGE_LEN, Extent, Verdict, checked_extent},
};

/// How long a waiter looks before it sleeps, when every thread has a core of its own.
const SPIN: Duration = Duration::from_micros(20);
/// Slices of a bucket start at multiples of this many floats: a cache line.
const SLICE_ALIGN: usize = 16;
/// Largest plan that is written into a group's memory.
const PLAN_BYTES_CAP: usize = 16 << 20;
/// Round of the formation itself.
const FORMATION: u32 = 1;

/// A formed group, in the three parts that belong to different threads.
#[derive(Debug)]
pub struct Formed {
    /// For the communication thread.
    pub group: ShmGroup,
    /// For the thread that computes.
    pub arena: OwnArena,
    /// For the thread that computes.
    pub board: Board,
}

/// One rank's end of a group over shared memory.
#[derive(Debug)]
pub struct ShmGroup {
    rank: usize,
    plan: Plan,
    timeout: Duration,
    control: Control,
    summer: Summer,
    record: Option<Arc<FlightRecord>>,
    /// Rounds entered.
    round: u32,
    /// Collectives begun.
    sequence: u64,
    /// Ballots cast.
    turn: u64,
    /// What the buckets since the last vote had in them.
    found: Found,
    failed: Option<GroupError>,
    has_left: bool,
}

/// Gives a group up from any thread; everybody who waits or comes later gets
/// [`GroupError::Aborted`]. Can be repeated.
#[derive(Debug, Clone)]
pub struct Aborter {
    rank: usize,
    control: Control,
}

impl Aborter {
    /// Gives the group up.
    pub fn abort(&self) {
        self.control.give_up(&Verdict::Left { rank: self.rank });
    }
}

/// What a round is for, as ranks compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Formation,
    Enter(usize),
    Leave(usize),
    BroadcastEnter(usize),
    BroadcastLeave(usize),
    Exchange(usize),
    Barrier,
}

impl Op {
    fn word(self) -> u64 {
        let (kind, index) = match self {
            Self::Formation => (1, 0),
            Self::Enter(bucket) => (2, bucket),
            Self::Leave(bucket) => (3, bucket),
            Self::BroadcastEnter(len) => (4, len),
            Self::BroadcastLeave(len) => (5, len),
            Self::Exchange(len) => (6, len),
            Self::Barrier => (7, 0),
        };
        (kind << 56) | index as u64
    }

    fn name(word: u64, plan: &Plan) -> String {
        let index = usize::try_from(word & ((1 << 56) - 1)).unwrap_or(usize::MAX);
        match word >> 56 {
            1 => "the formation of the group".to_owned(),
            2 => plan.bucket_name(index),
            3 => format!("the end of {}", plan.bucket_name(index)),
            4 => format!("a broadcast of {index} floats"),
            5 => format!("the end of a broadcast of {index} floats"),
            6 => format!("an exchange of {index} numbers"),
            7 => "a barrier".to_owned(),
            kind => format!("something unknown ({kind})"),
        }
    }
}

/// A plan mismatch as it travels between ranks.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    what: String,
    rank_zero: String,
    other: String,
}

impl ShmGroup {
    /// Joins the group whose memory is `fd`, as `rank` of `world`. Rank 0 gives the memory its size.
    ///
    /// `timeout` bounds the formation, and later every single wait.
    ///
    /// # Errors
    /// [`GroupError::FormationTimeout`] names who did not come; [`GroupError::PlanMismatch`] the
    /// first parameter that two ranks see differently.
    ///
    /// # Panics
    /// If `rank` is not below `world`, `world` above [`MAX_WORLD`], or the plan of another size.
    pub fn form(
        fd: impl AsFd,
        rank: usize,
        world: usize,
        plan: &Plan,
        timeout: Duration,
        record: Option<Arc<FlightRecord>>,
    ) -> Result<Formed, GroupError> {
        assert!(rank < world && world <= MAX_WORLD, "rank {rank} of {world}");
        assert!(plan.world == world, "a plan for {} ranks, the world is {world}", plan.world);
        let started = Instant::now();
        let deadline = started + timeout;
        let spin = spin(world);
        let early = Mapping::of_file(&fd, CONTROL_BYTES, CONTROL_BYTES)
            .map_err(|error| GroupError::io("mapping the group's control pages", error))?;
        let early = Control::new(Arc::new(early), world, spin);
        if !early.claim(rank) {
            let taken = io::Error::other(format!("rank {rank} has already joined"));
            return Err(GroupError::io("joining the group", taken));
        }
        let leaving = LeaveOnError { control: Some(early.clone()), rank };
        let map = match rank {
            0 => lead(&fd, &early, plan)?,
            _ => {
                let extent = early
                    .published(deadline)
                    .map_err(|broken| not_formed(&early, rank, broken, started))?;
                follow(&fd, &early, rank, plan, checked_extent(extent)?)?
            }
        };
        let map = Arc::new(map);
        let control = Control::new(Arc::clone(&map), world, spin);
        let shape = ArenaShape { ranks: world, slots: plan.slots, len: plan.arena_len };
        let (arena, summer) = map
            .take_floats(shape, rank)
            .map_err(|error| GroupError::io("taking the group's arenas", error))?;
        let board = Board::new(map, board_offset(plan), plan.grain_rows, plan.grain_columns);
        control.enter(rank, FORMATION, Op::Formation.word());
        control
            .wait_all(FORMATION, deadline)
            .map_err(|broken| not_formed(&control, rank, broken, started))?;
        leaving.stay();
        tracing::debug!(rank, world, plan = plan.hash(), "formed a group");
        let group = Self {
            rank,
            plan: plan.clone(),
            timeout,
            control,
            summer,
            record,
            round: FORMATION,
            sequence: 0,
            turn: 0,
            found: Found::default(),
            failed: None,
            has_left: false,
        };
        Ok(Formed { group, arena, board })
    }

    /// Leaves after the last collective. Others are not disturbed, as they are when a group that is
    /// in use is dropped.
    pub fn leave(mut self) {
        self.has_left = true;
    }

    /// One round: says that this rank is there, and waits for all others.
    fn meet(&mut self, op: Op) -> Result<(), GroupError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let met = self.try_meet(op);
        if let Err(error) = &met {
            self.failed = Some(error.clone());
        }
        met
    }

    fn try_meet(&mut self, op: Op) -> Result<(), GroupError> {
        let started = Instant::now();
        self.round = self.round.wrapping_add(1);
        if !self.control.enter(self.rank, self.round, op.word()) {
            return Err(self.given_up(Vec::new(), op, started));
        }
        match self.control.wait_all(self.round, started + self.timeout) {
            Ok(()) => {}
            Err(Broken::Marked { missing }) => return Err(self.given_up(missing, op, started)),
            Err(Broken::TimedOut { missing }) => {
                self.control.give_up(&Verdict::TimedOut { rank: self.rank });
                return Err(self.not_entered(missing, op, started));
            }
        }
        match self.control.first_other_op(self.round, op.word()) {
            None => Ok(()),
            Some((rank, theirs)) => {
                self.control.give_up(&Verdict::Left { rank: self.rank });
                Err(GroupError::Diverged {
                    rank,
                    ours: Op::name(op.word(), &self.plan),
                    theirs: Op::name(theirs, &self.plan),
                })
            }
        }
    }

    /// The error of a rank that sees the mark. Where another's deadline passed while this one
    /// waited too, it is for the same ranks.
    fn given_up(&self, missing: Vec<usize>, op: Op, started: Instant) -> GroupError {
        match self.control.verdict() {
            Some(Verdict::TimedOut { .. }) if !missing.is_empty() => {
                self.not_entered(missing, op, started)
            }
            Some(verdict) => verdict_error(self.rank, verdict),
            None => GroupError::Aborted { by: None },
        }
    }

    fn not_entered(&self, missing: Vec<usize>, op: Op, started: Instant) -> GroupError {
        let what = Op::name(op.word(), &self.plan);
        GroupError::NotEntered { missing, what, waited: started.elapsed() }
    }

    /// The first round of a collective on floats, then this rank's slice, without the last round.
    fn enter_and_sum(
        &mut self,
        bucket: usize,
        lease: &Lease,
        order: &SumOrder,
    ) -> Result<(), GroupError> {
        self.meet(Op::Enter(bucket))?;
        self.started();
        let slice = slice_of(self.rank, self.control_world(), lease.range());
        let found = self.summer.sum(lease, slice, order.ops());
        self.found.is_non_finite |= found.is_non_finite;
        self.found.ranks |= found.ranks;
        Ok(())
    }

    /// Keeps the range leased for good when the collective failed: others may still write there.
    fn settle<T>(result: Result<T, GroupError>, lease: Lease) -> Result<T, GroupError> {
        if result.is_err() {
            mem::forget(lease);
        }
        result
    }

    fn vote(
        &mut self,
        bucket: usize,
        lease: &Lease,
        order: &SumOrder,
        ballot: Ballot,
    ) -> Result<Tally, GroupError> {
        self.turn += 1;
        self.control.cast(self.turn, self.rank, words(ballot, Found::default()));
        self.enter_and_sum(bucket, lease, order)?;
        self.same_step(ballot)?;
        let found = mem::take(&mut self.found);
        self.control.cast(self.turn, self.rank, words(ballot, found));
        self.meet(Op::Leave(bucket))?;
        Ok((0..self.control_world())
            .map(|rank| (rank, self.control.ballot(self.turn, rank)))
            .fold(Tally::default(), |tally, (rank, words)| counted(tally, rank, words)))
    }

    /// Whether all ranks mean the same step of the same size.
    fn same_step(&mut self, ballot: Ballot) -> Result<(), GroupError> {
        for rank in 0..self.control_world() {
            let [step, grains, ..] = self.control.ballot(self.turn, rank);
            if (step, grains) != (ballot.step, ballot.grains_total) {
                let said = |step, grains| format!("step {step} of {grains} grains");
                let error = GroupError::Diverged {
                    rank,
                    ours: said(ballot.step, ballot.grains_total),
                    theirs: said(step, grains),
                };
                self.control.give_up(&Verdict::Left { rank: self.rank });
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.sequence += 1;
    }

    fn started(&self) {
        if let Some(record) = &self.record {
            record.set_started(self.sequence);
        }
    }

    fn done(&self) {
        if let Some(record) = &self.record {
            record.set_done(self.sequence);
        }
    }

    fn control_world(&self) -> usize {
        self.plan.world
    }
}

impl ProcessGroup for ShmGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.plan.world
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn all_reduce(
        &mut self,
        bucket: usize,
        lease: Lease,
        order: &SumOrder,
    ) -> Result<(), GroupError> {
        self.begin();
        let result = self
            .enter_and_sum(bucket, &lease, order)
            .and_then(|()| self.meet(Op::Leave(bucket)))
            .inspect(|()| self.done());
        Self::settle(result, lease)
    }

    fn all_reduce_and_vote(
        &mut self,
        bucket: usize,
        lease: Lease,
        order: &SumOrder,
        ballot: Ballot,
    ) -> Result<Tally, GroupError> {
        self.begin();
        let result = self.vote(bucket, &lease, order, ballot).inspect(|_| self.done());
        Self::settle(result, lease)
    }

    fn broadcast(
        &mut self,
        root: usize,
        lease: Lease,
        values: &mut [f32],
    ) -> Result<(), GroupError> {
        self.begin();
        let result = self.meet(Op::BroadcastEnter(values.len())).and_then(|()| {
            self.started();
            self.summer.copy_from(root, lease.range(), values);
            self.meet(Op::BroadcastLeave(values.len()))
        });
        Self::settle(result.inspect(|()| self.done()), lease)
    }

    fn all_reduce_f64(&mut self, values: &mut [f64]) -> Result<(), GroupError> {
        self.begin();
        for values in values.chunks_mut(EXCHANGE_LEN) {
            let count = self.round.wrapping_add(1);
            for (index, value) in values.iter().enumerate() {
                let cell = self.control.exchanged(count, self.rank, index);
                cell.store(value.to_bits(), Ordering::Relaxed);
            }
            self.meet(Op::Exchange(values.len()))?;
            self.started();
            for (index, value) in values.iter_mut().enumerate() {
                // Starts from rank 0's bits, so that one rank's value comes through untouched.
                let brought = |rank| {
                    f64::from_bits(
                        self.control.exchanged(count, rank, index).load(Ordering::Relaxed),
                    )
                };
                *value = (1..self.plan.world).fold(brought(0), |sum, rank| sum + brought(rank));
            }
        }
        self.done();
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), GroupError> {
        self.begin();
        self.meet(Op::Barrier)?;
        self.started();
        self.done();
        Ok(())
    }

    fn aborter(&self) -> Aborter {
        Aborter { rank: self.rank, control: self.control.clone() }
    }
}

impl Drop for ShmGroup {
    fn drop(&mut self) {
        if !self.has_left {
            self.control.give_up(&Verdict::Left { rank: self.rank });
        }
    }
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

/// Rank 0: sizes the memory, writes the plan into it, lets the others in.
fn lead(fd: impl AsFd, early: &Control, plan: &Plan) -> Result<Mapping, GroupError> {
    let text = plan.to_text();
    if PLAN_BYTES_CAP < text.len() {
        let error = io::Error::other(format!("{} bytes, at most {PLAN_BYTES_CAP}", text.len()));
        return Err(GroupError::io("writing the plan", error));
    }
    let extent = extent_of(plan, text.len());
    size_group_memory(&fd, extent.total_bytes)
        .map_err(|error| GroupError::io("giving the group's memory its size", error))?;
    let map = Mapping::of_file(&fd, extent.total_bytes, extent.words_bytes)
        .map_err(|error| GroupError::io("mapping the group's memory", error))?;
    map.store_octets(CONTROL_BYTES, &text);
    early.publish(extent);
    Ok(map)
}

/// The others: map what rank 0 made and compare the plans.
fn follow(
    fd: impl AsFd,
    early: &Control,
    rank: usize,
    plan: &Plan,
    extent: Extent,
) -> Result<Mapping, GroupError> {
    let map = Mapping::of_file(&fd, extent.total_bytes, extent.words_bytes)
        .map_err(|error| GroupError::io("mapping the group's memory", error))?;
    let text = map.load_octets(CONTROL_BYTES, extent.plan_bytes);
    let leader: Plan = serde_json::from_slice(&text)
        .map_err(|error| GroupError::io("reading the plan of rank 0", error.into()))?;
    let Some(difference) = leader.first_difference(plan) else { return Ok(map) };
    let report =
        Report { what: difference.what, rank_zero: difference.ours, other: difference.theirs };
    let text = serde_json::to_vec(&report).unwrap_or_default();
    early.give_up(&Verdict::PlanMismatch { rank, report: text });
    Err(mismatch(rank, report))
}

fn not_formed(control: &Control, rank: usize, broken: Broken, started: Instant) -> GroupError {
    let waited = started.elapsed();
    match broken {
        Broken::TimedOut { missing } => {
            control.give_up(&Verdict::TimedOut { rank });
            GroupError::FormationTimeout { missing, waited }
        }
        Broken::Marked { missing } => match control.verdict() {
            Some(Verdict::TimedOut { .. }) if !missing.is_empty() => {
                GroupError::FormationTimeout { missing, waited }
            }
            Some(verdict) => verdict_error(rank, verdict),
            None => GroupError::Aborted { by: None },
        },
    }
}

fn verdict_error(own: usize, verdict: Verdict) -> GroupError {
    match verdict {
        Verdict::Left { rank } | Verdict::TimedOut { rank } => {
            GroupError::Aborted { by: (rank != own).then_some(rank) }
        }
        Verdict::PlanMismatch { rank, report } => match serde_json::from_slice(&report) {
            Ok(report) => mismatch(rank, report),
            // The report was too long for its page.
            Err(_) => mismatch(
                rank,
                Report {
                    what: "the plan".to_owned(),
                    rank_zero: "one".to_owned(),
                    other: "another".to_owned(),
                },
            ),
        },
    }
}

fn mismatch(rank: usize, report: Report) -> GroupError {
    let Report { what, rank_zero, other } = report;
    GroupError::PlanMismatch { rank, parameter: what, rank_zero, other }
}

fn extent_of(plan: &Plan, plan_bytes: usize) -> Extent {
    let shape = ArenaShape { ranks: plan.world, slots: plan.slots, len: plan.arena_len };
    let board_end =
        board_offset_for(plan_bytes) + Board::bytes(plan.grain_rows, plan.grain_columns);
    let words_bytes = page_aligned(board_end);
    Extent { plan_bytes, words_bytes, total_bytes: words_bytes + shape.bytes() }
}

fn board_offset(plan: &Plan) -> usize {
    board_offset_for(plan.to_text().len())
}

fn board_offset_for(plan_bytes: usize) -> usize {
    page_aligned(CONTROL_BYTES + plan_bytes)
}

/// The part of `range` that `rank` adds up.
fn slice_of(rank: usize, world: usize, range: Range<usize>) -> Range<usize> {
    let each = range.len().div_ceil(world).next_multiple_of(SLICE_ALIGN);
    let at = |rank: usize| range.start + (each * rank).min(range.len());
    at(rank)..at(rank + 1)
}

/// Each rank has a thread that computes and one that communicates.
fn spin(world: usize) -> Duration {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if 2 * world <= cores { SPIN } else { Duration::ZERO }
}

const STOP: u64 = 1;
const NON_FINITE: u64 = 2;
const HAS_DATA: u64 = 4;

fn words(ballot: Ballot, found: Found) -> [u64; 4] {
    let Ballot { step, grains_total, has_data, stop, non_finite } = ballot;
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let flags = flag(stop, STOP)
        | flag(non_finite, NON_FINITE)
        | flag(has_data, HAS_DATA)
        | flag(found.is_non_finite, NON_FINITE << 8);
    [step, grains_total, flags, found.ranks]
}

fn counted(mut tally: Tally, rank: usize, words: [u64; 4]) -> Tally {
    let [_, _, flags, found_ranks] = words;
    tally.stop |= flags & STOP != 0;
    tally.non_finite |= flags & (NON_FINITE | NON_FINITE << 8) != 0;
    tally.non_finite_ranks |= found_ranks | (u64::from(flags & NON_FINITE != 0) << rank);
    tally.with_data += usize::from(flags & HAS_DATA != 0);
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_range_once_whatever_its_length() {
        for world in 1..8 {
            for len in (0..70).chain([1000, 1023, 4096]) {
                let range = 13..13 + len;
                let slices: Vec<_> =
                    (0..world).map(|rank| slice_of(rank, world, range.clone())).collect();
                let mut next = range.start;
                for slice in &slices {
                    assert_eq!(slice.start, next, "{slices:?}");
                    next = slice.end;
                }
                assert_eq!(next, range.end, "{slices:?}");
            }
        }
    }
}
