//! The collectives of a group on CPUs.

use std::{mem, ops::Range, time::Duration};

use lockstep_shm::{Combine, Dtype, Found, Lease, Span};

use super::{Aborter, CpuGroup, Findings, Reduction, Stage};
use crate::{
    Backend, Ballot, GroupError, Phase, Plan, ProcessGroup, ReduceOp, SumOrder, Tally, Topology,
    What,
    net::Moves,
    op::{Kind, Op},
    part_of,
    split::Split,
};

impl ProcessGroup for CpuGroup {
    fn backend(&self) -> Backend {
        let nodes = self.topology.node_count();
        match (nodes, self.topology.world() == nodes) {
            (1, _) => Backend::Shm,
            (_, true) => Backend::Tcp,
            (_, false) => Backend::Hier,
        }
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.topology.world()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn part(&self, rank: usize, len: usize, dtype: Dtype) -> Range<usize> {
        part_of(rank, self.topology.world(), len, dtype)
    }

    fn all_reduce(
        &mut self,
        what: What,
        lease: Lease,
        span: Span,
        op: ReduceOp,
        order: &SumOrder,
    ) -> Result<Lease, GroupError> {
        self.reduce_all(what, lease, span, Reduction { op, order, is_scatter: false })
    }

    fn all_reduce_and_vote(
        &mut self,
        bucket: usize,
        lease: Lease,
        span: Span,
        order: &SumOrder,
        ballot: Ballot,
    ) -> Result<(Lease, Tally), GroupError> {
        self.check_order(order, ReduceOp::Sum, span.dtype)?;
        self.vote(bucket, lease, span, order, &ballot)
    }

    fn reduce_scatter(
        &mut self,
        what: What,
        lease: Lease,
        span: Span,
        op: ReduceOp,
        order: &SumOrder,
    ) -> Result<Lease, GroupError> {
        self.reduce_all(what, lease, span, Reduction { op, order, is_scatter: true })
    }

    fn all_gather(&mut self, what: What, lease: Lease, span: Span) -> Result<Lease, GroupError> {
        let op = Op::new(Kind::AllGather, what, span, Combine::Sum);
        let body = |group: &mut Self, lease: &Lease| {
            for rank in group.topology.members(group.node) {
                let part = group.part(rank, span.len, span.dtype);
                group.arenas.take_from(group.local(rank), lease, span, part);
            }
            let moves = Moves::all_gather(group.rank, &group.topology, span.len, span.dtype);
            let nothing = Split::nothing(&group.topology);
            group.transfer(op, (lease, span), moves, &nothing, (Combine::Sum, None))
        };
        self.on_numbers(op, lease, span, body).map(|(lease, ())| lease)
    }

    fn broadcast(
        &mut self,
        what: What,
        root: usize,
        lease: Lease,
        span: Span,
    ) -> Result<Lease, GroupError> {
        if self.topology.world() <= root {
            let text = format!("a broadcast from rank {root} of {}", self.topology.world());
            return Err(GroupError::InvalidArgument(text));
        }
        let op = Op::new(Kind::Broadcast, what, span, Combine::Sum);
        let body = |group: &mut Self, lease: &Lease| {
            if group.topology.node_of(root) == group.node {
                group.arenas.take_from(group.local(root), lease, span, 0..span.len);
            }
            let moves = Moves::broadcast(root, group.rank, &group.topology, span.len);
            let nothing = Split::nothing(&group.topology);
            group.transfer(op, (lease, span), moves, &nothing, (Combine::Sum, None))
        };
        self.on_numbers(op, lease, span, body).map(|(lease, ())| lease)
    }

    fn floats_mut(&mut self, lease: &Lease) -> &mut [f32] {
        self.arenas.floats_mut(lease)
    }

    fn take_findings(&mut self) -> Findings {
        Findings { found: mem::take(&mut self.found), ranks: mem::take(&mut self.found_ranks) }
    }

    fn add_findings(&mut self, findings: Findings) {
        self.found_ranks |= findings.ranks;
        self.found.merge(findings.found);
    }

    fn judge(&mut self, is_non_finite: bool) {
        self.found = Found { is_non_finite, ..Found::default() };
        self.found_ranks = 0;
    }

    fn barrier(&mut self) -> Result<(), GroupError> {
        let op = Op::without_numbers(Kind::Barrier);
        self.begin(self.flight(op));
        self.meet(op, Phase::Entering)?;
        self.started();
        if self.mesh.is_some() {
            self.exchange_notes(op, Stage::Notes, Vec::new())?;
            self.meet(op, Phase::Leaving)?;
        }
        self.done();
        Ok(())
    }

    fn announce_pause(&mut self, longest: Duration) {
        self.say_pause(longest);
    }

    fn end_pause(&mut self) {
        self.say_pause_is_over();
    }

    fn aborter(&self) -> Aborter {
        Aborter { rank: self.rank, control: self.control.clone() }
    }

    fn leave(mut self: Box<Self>) {
        self.has_left = true;
        if let Some(mesh) = self.mesh.take() {
            mesh.close();
        }
    }
}
