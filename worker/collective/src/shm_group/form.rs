//! How a group forms: ranks meet in the control pages, rank 0 gives the memory its size and writes
//! the plan, the others compare it with their own, and all wait for all.

use std::{
    io,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lockstep_shm::{
    ArenaShape, CONTROL_BYTES, FlightRecord, Found, Mapping, page_aligned, size_group_memory,
};

use crate::{
    Board, Formed, GroupError, MAX_WORLD, Plan, ShmGroup,
    control::{Broken, Control, Extent, Verdict, checked_extent},
    op::Op,
    verdict::{Report, mismatch, verdict_error},
};

/// How long a waiter looks before it sleeps, when every thread has a core of its own.
const SPIN: Duration = Duration::from_micros(20);
/// Largest plan that is written into a group's memory.
const PLAN_BYTES_CAP: usize = 16 << 20;
/// Round of the formation itself.
const FORMATION: u32 = 1;

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

/// Each rank has a thread that computes and one that communicates.
fn spin(world: usize) -> Duration {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if 2 * world <= cores { SPIN } else { Duration::ZERO }
}
