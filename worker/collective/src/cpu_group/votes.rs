//! The votes of a step, which travel with its last bucket, and the rows of the board with them.

use std::time::Instant;

use lockstep_shm::{Lease, Span};

use crate::{
    Ballot, GroupError, Phase, ReduceOp, SumOrder, Tally, What,
    ballot::{grains_of, step_of, tally, words},
    control::{BALLOT_WORDS, BallotWords},
    net::{MeshError, exchange_notes},
    op::{Kind, Op},
    verdict::Verdict,
};

use super::{CpuGroup, Reduction, Stage, call};

impl CpuGroup {
    pub(super) fn vote(
        &mut self,
        bucket: usize,
        lease: Lease,
        span: Span,
        order: &SumOrder,
        ballot: &Ballot,
    ) -> Result<(Lease, Tally), GroupError> {
        self.turn += 1;
        let reduction = Reduction { op: ReduceOp::Sum, order, is_scatter: false };
        let op = Op::new(Kind::AllReduce, What::Bucket(bucket), span, ReduceOp::Sum.combine());
        let flight = self.flight_of_vote(op);
        let (lease, ()) = self.on_numbers_as(flight, op, (lease, span), |group, lease| {
            group.reduce(op, lease, span, reduction)?;
            let (found, ranks) =
                (std::mem::take(&mut group.found), std::mem::take(&mut group.found_ranks));
            group.control.cast(group.turn, group.rank, words(ballot, &found, ranks));
            group.share_ballots(op)
        })?;
        let turn = self.turn;
        let ballots: Vec<BallotWords> =
            (0..self.topology.world()).map(|rank| self.control.ballot(turn, rank)).collect();
        self.same_step(&ballots, ballot)?;
        Ok((lease, tally(&ballots)))
    }

    /// Gives the ballots and rows of each node to all others.
    fn share_ballots(&mut self, op: Op) -> Result<(), GroupError> {
        if self.mesh.is_none() {
            return Ok(());
        }
        // All ballots of the node are there.
        self.meet(op, Phase::Exchanging)?;
        let note = if self.is_leader() { self.node_note() } else { Vec::new() };
        let started = Instant::now();
        let notes = self.exchange_notes(op, Stage::Notes, note)?;
        for (node, note) in notes.iter().enumerate() {
            if self.is_leader() && node != self.node && !self.take_note(node, note) {
                let detail = format!("ballots of {} bytes", note.len());
                let error = MeshError::Garbage { rank: self.topology.leader(node), detail };
                return Err(self.mesh_failed(error, op, started));
            }
        }
        Ok(())
    }

    /// Leaders exchange notes, by node; nothing happens on other ranks.
    pub(super) fn exchange_notes(
        &mut self,
        op: Op,
        stage: Stage,
        note: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, GroupError> {
        let is_leader = self.is_leader();
        let Some(mesh) = self.mesh.as_mut().filter(|_| is_leader) else { return Ok(Vec::new()) };
        let started = Instant::now();
        let others = (0..self.topology.node_count()).filter(|node| *node != self.node);
        let leaders = others.fold(0, |all, node| all | 1 << self.topology.leader(node));
        self.control.set_blocked_on(self.rank, leaders);
        let call = call(self.rank, self.sequence, stage, op, self.timeout);
        let (node, control) = (self.node, &self.control);
        let notes = exchange_notes(mesh, &self.topology, (node, note), call, control);
        self.control.set_blocked_on(self.rank, 0);
        notes.map_err(|error| self.mesh_failed(error, op, started))
    }

    /// Ballots of the node's ranks, then the rows of their grains.
    fn node_note(&self) -> Vec<u8> {
        let ballots: Vec<BallotWords> = self
            .topology
            .members(self.node)
            .map(|rank| self.control.ballot(self.turn, rank))
            .collect();
        let (step, _) = step_of(ballots[0]);
        let grains = ballots.iter().map(|ballot| grains_of(*ballot));
        let within = |row: &usize| *row < self.board.rows();
        let rows =
            grains.flatten().filter(within).map(|row| self.board.rows_of(step, row..row + 1));
        let words = ballots.iter().flatten().copied().chain(rows.flatten());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Takes in the note of another node. False when it is none.
    fn take_note(&self, node: usize, note: &[u8]) -> bool {
        let words: Vec<u64> =
            note.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let members = self.topology.members(node);
        let ballots_len = members.len() * BALLOT_WORDS;
        if !note.len().is_multiple_of(8) || words.len() < ballots_len {
            return false;
        }
        let (ballots, mut rows) = words.split_at(ballots_len);
        let columns = self.plan.grain_columns;
        for (rank, ballot) in members.zip(ballots.as_chunks::<BALLOT_WORDS>().0) {
            let grains = grains_of(*ballot);
            let (step, _) = step_of(*ballot);
            let bits = grains.len().saturating_mul(columns);
            if self.board.rows() < grains.end || rows.len() < bits {
                return false;
            }
            let (own, others) = rows.split_at(bits);
            self.board.put_rows(step, grains.start, own);
            rows = others;
            self.control.cast(self.turn, rank, *ballot);
        }
        rows.is_empty()
    }

    /// Whether all ranks mean the same step of the same size.
    fn same_step(&mut self, ballots: &[BallotWords], ballot: &Ballot) -> Result<(), GroupError> {
        let ours = (ballot.step, ballot.grains_total);
        let other = ballots.iter().map(|words| step_of(*words)).position(|theirs| theirs != ours);
        let Some(rank) = other else { return Ok(()) };
        let said = |(step, grains)| format!("step {step} of {grains} grains");
        let error = GroupError::Diverged {
            rank,
            ours: said(ours),
            theirs: said(step_of(ballots[rank])),
            sequence: self.sequence,
        };
        self.control.give_up(&Verdict::Left { rank: self.rank });
        self.failed = Some(error.clone());
        Err(error)
    }
}
