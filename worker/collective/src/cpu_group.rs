//! The process group on CPUs: in place in shared pages inside a node, over connections between
//! nodes, or both.
//!
//! Every collective on numbers has two rounds among the ranks of a node. After the first all of them
//! have leased the range; each rank then works on its own part of it, in all arenas of the node, which nobody
//! else touches, and exchanges it with its equals on other nodes. After the second round the range
//! belongs to its owner again. No byte is copied inside a node.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_shm::{
    Combine, Dtype, FlightKind, FlightOp, FlightRecord, Found, Lease, NodeArenas, OwnArena, Reduce,
    Span,
};

use crate::{
    Board, GroupError, Phase, Plan, ReduceOp, SumOrder, Topology, What,
    control::Control,
    net::{Call, Deadline, EXCHANGES, Mesh, Moves, Numbers, Transfer},
    op::{Kind, Op},
    part_of,
    split::Split,
    verdict::Verdict,
};

mod collectives;
mod faults;
mod form;
mod memory;
mod pause;
mod votes;

pub use form::Join;

/// A formed group, in the three parts that belong to different threads.
#[derive(Debug)]
pub struct Formed {
    /// For the communication thread.
    pub group: CpuGroup,
    /// For the thread that computes.
    pub arena: OwnArena,
    /// For the thread that computes.
    pub board: Board,
}

/// Several groups over the same arenas, which take turns with buckets.
#[derive(Debug)]
pub struct FormedLanes {
    /// Each for a communication thread of its own. A lease is for the one whose number it names.
    pub groups: Vec<CpuGroup>,
    /// For the thread that computes.
    pub arena: OwnArena,
    /// For the thread that computes.
    pub board: Board,
}

/// One rank's end of a group.
#[derive(Debug)]
pub struct CpuGroup {
    rank: usize,
    node: usize,
    topology: Topology,
    plan: Plan,
    timeout: Duration,
    control: Control,
    arenas: NodeArenas,
    /// Connections to other nodes, if there are any.
    mesh: Option<Mesh>,
    board: Board,
    record: Option<Arc<FlightRecord>>,
    /// Which of several groups of the same ranks.
    lane: u8,
    /// Rounds entered.
    round: u32,
    /// When the last of them was over.
    met: Instant,
    /// Collectives begun.
    sequence: u64,
    /// Ballots cast.
    turn: u64,
    /// What the buckets since the last vote had in them, and whose it was.
    found: Found,
    found_ranks: u64,
    /// The last order that was cut up, which seldom changes.
    split: Option<(SumOrder, bool, Arc<Split>)>,
    failed: Option<GroupError>,
    has_left: bool,
}

/// What a group's buckets had in them since the last vote.
#[derive(Debug, Default)]
pub struct Findings {
    found: Found,
    ranks: u64,
}

/// Gives a group up from any thread; every rank of the node that waits or comes later gets
/// [`GroupError::Aborted`]. Other nodes hear of it from the thread that uses the group. Can be repeated.
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

/// A reduction of a collective.
#[derive(Debug, Clone, Copy)]
struct Reduction<'a> {
    op: ReduceOp,
    order: &'a SumOrder,
    /// Whether each rank gets its own part only.
    is_scatter: bool,
}

/// The exchanges of one collective, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Numbers,
    Notes,
    /// Only when the first notes differ.
    Details,
}

/// An exchange of collective `sequence`.
fn call(rank: usize, sequence: u64, stage: Stage, op: Op, timeout: Duration) -> Call {
    let stage = match stage {
        Stage::Numbers => 0,
        Stage::Notes => 1,
        Stage::Details => 2,
    };
    Call {
        rank,
        number: EXCHANGES * sequence + stage,
        op: op.words(Phase::Exchanging),
        deadline: Deadline::after(timeout + timeout / 8),
    }
}

impl CpuGroup {
    /// One collective on numbers: both rounds, and `body` between them.
    fn on_numbers<T>(
        &mut self,
        op: Op,
        lease: Lease,
        span: Span,
        body: impl FnOnce(&mut Self, &Lease) -> Result<T, GroupError>,
    ) -> Result<(Lease, T), GroupError> {
        self.on_numbers_as(self.flight(op), op, (lease, span), body)
    }

    /// The same, under another name in the flight record.
    fn on_numbers_as<T>(
        &mut self,
        flight: FlightOp,
        op: Op,
        (lease, span): (Lease, Span),
        body: impl FnOnce(&mut Self, &Lease) -> Result<T, GroupError>,
    ) -> Result<(Lease, T), GroupError> {
        let held = lease.range();
        if span.first < held.start || held.end * size_of::<f32>() < span.first * 4 + span.bytes() {
            let text = format!("{span:?} does not lie under the lease of {held:?}");
            return Err(GroupError::InvalidArgument(text));
        }
        self.begin(flight);
        let result = self.meet(op, Phase::Entering).and_then(|()| {
            self.started();
            let result = body(self, &lease)?;
            self.meet(op, Phase::Leaving)?;
            Ok(result)
        });
        match result {
            Ok(result) => {
                self.done();
                Ok((lease, result))
            }
            Err(error) => {
                // Others may still write there.
                mem::forget(lease);
                Err(error)
            }
        }
    }

    /// A reduction from its first round to its last.
    fn reduce_all(
        &mut self,
        what: What,
        lease: Lease,
        span: Span,
        reduction: Reduction<'_>,
    ) -> Result<Lease, GroupError> {
        let Reduction { op, order, is_scatter } = reduction;
        self.check_order(order, op, span.dtype)?;
        let kind = if is_scatter { Kind::ReduceScatter } else { Kind::AllReduce };
        let op = Op::new(kind, what, span, op.combine());
        let body = |group: &mut Self, lease: &Lease| group.reduce(op, lease, span, reduction);
        self.on_numbers(op, lease, span, body).map(|(lease, ())| lease)
    }

    /// This rank's part of a reduction, between the rounds.
    fn reduce(
        &mut self,
        op: Op,
        lease: &Lease,
        span: Span,
        reduction: Reduction<'_>,
    ) -> Result<(), GroupError> {
        let split = self.split_of(reduction.order, span.dtype);
        let world = self.topology.world();
        let (combine, divisor) = (op.combine, (reduction.op == ReduceOp::Avg).then_some(world));
        if self.mesh.is_none() {
            let (part, program) =
                (part_of(self.rank, world, span.len, span.dtype), &split.programs[self.node]);
            let reduce = Reduce { span, part, program, staged: &[], combine, divisor };
            let found = match reduction.is_scatter {
                true => self.arenas.reduce_own(lease, &reduce),
                false => self.arenas.reduce(lease, &reduce),
            };
            let ranks = found.ranks;
            self.note(op.what, found, ranks);
            return Ok(());
        }
        let moves = match reduction.is_scatter {
            true => Moves::reduce_scatter(self.rank, &self.topology, span.len, span.dtype),
            false => Moves::all_reduce(self.rank, &self.topology, span.len, span.dtype),
        };
        self.transfer(op, (lease, span), moves, &split, (combine, divisor))
    }

    /// Moves numbers between nodes.
    fn transfer(
        &mut self,
        op: Op,
        (lease, span): (&Lease, Span),
        moves: Moves,
        split: &Split,
        (combine, divisor): (Combine, Option<usize>),
    ) -> Result<(), GroupError> {
        let Some(mesh) = &mut self.mesh else { return Ok(()) };
        let numbers = Numbers { arenas: &mut self.arenas, lease, span, combine, divisor };
        let mut transfer = Transfer::new(numbers, moves, split, &self.topology, self.rank);
        self.control.set_blocked_on(self.rank, transfer.expects());
        let started = Instant::now();
        let call = call(self.rank, self.sequence, Stage::Numbers, op, self.timeout);
        let moved = transfer.run(mesh, call, &self.control);
        self.control.set_blocked_on(self.rank, 0);
        let (found, ranks) = transfer.found();
        self.note(op.what, found, ranks);
        moved.map_err(|error| self.mesh_failed(error, op, started))
    }

    /// What was found in a bucket goes into the next vote; other numbers may be whatever they are.
    fn note(&mut self, what: What, found: Found, ranks: u64) {
        if let What::Bucket(_) = what {
            self.found_ranks |= ranks;
            self.found.merge(found);
        }
    }

    /// The order cut up by node. What loses bits when it is sent is not added up before.
    fn split_of(&mut self, order: &SumOrder, dtype: Dtype) -> Arc<Split> {
        let keeps_sources = match dtype {
            Dtype::Bf16 | Dtype::F16 => true,
            Dtype::F32 | Dtype::F64 | Dtype::I64 => false,
        };
        if let Some((known, kept, split)) = &self.split
            && known == order
            && *kept == keeps_sources
        {
            return Arc::clone(split);
        }
        let split = Arc::new(Split::new(order, &self.topology, keeps_sources));
        self.split = Some((order.clone(), keeps_sources, Arc::clone(&split)));
        split
    }

    fn check_order(&self, order: &SumOrder, op: ReduceOp, dtype: Dtype) -> Result<(), GroupError> {
        if op == ReduceOp::Avg && dtype == Dtype::I64 {
            return Err(GroupError::InvalidArgument("a mean of integers is none".to_owned()));
        }
        if self.topology.world() < order.world() {
            let text =
                format!("an order over {} ranks of {}", order.world(), self.topology.world());
            return Err(GroupError::InvalidArgument(text));
        }
        Ok(())
    }

    /// Ranks of this node, counted from 0 on it.
    fn local(&self, rank: usize) -> usize {
        rank - self.topology.leader(self.node)
    }

    fn is_leader(&self) -> bool {
        self.topology.leader(self.node) == self.rank
    }

    fn flight(&self, op: Op) -> FlightOp {
        op.flight(self.plan.buckets.len())
    }

    /// Of the last bucket of a step.
    fn flight_of_vote(&self, op: Op) -> FlightOp {
        FlightOp { kind: FlightKind::Vote, ..self.flight(op) }
    }

    fn begin(&mut self, flight: FlightOp) {
        // A dead group enters nothing: the record stays at what it died in.
        if self.failed.is_some() {
            return;
        }
        self.sequence += 1;
        if let Some(record) = &self.record {
            record.enter(self.lane.into(), self.sequence, flight);
        }
    }

    fn started(&self) {
        if let Some(record) = &self.record {
            record.meet(self.lane.into(), self.sequence);
        }
    }

    fn done(&self) {
        if let Some(record) = &self.record {
            record.leave(self.lane.into(), self.sequence);
        }
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let verdict = Verdict::Left { rank: self.rank };
        self.control.give_up(&verdict);
        if let Some(mesh) = &mut self.mesh
            && self.failed.is_none()
        {
            mesh.say_farewell(&verdict);
        }
    }
}
