//! The process group of one node: collectives in place, in shared pages.
//!
//! Every collective on floats has two rounds. After the first all ranks have leased the range; rank
//! r then adds up its slice of it from all arenas and writes the sum to all arenas, which nobody
//! else touches. After the second round the range belongs to its owner again. No byte is copied.

use std::{
    mem,
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use lockstep_shm::{FlightRecord, Found, Lease, OwnArena, Summer};

use crate::{
    Ballot, Board, GroupError, Plan, ProcessGroup, SumOrder, Tally,
    ballot::{counted, words},
    control::{Broken, Control, EXCHANGE_LEN, Verdict},
    op::Op,
    verdict::verdict_error,
};

mod form;

/// Slices of a bucket start at multiples of this many floats: a cache line.
const SLICE_ALIGN: usize = 16;

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

impl ShmGroup {
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

/// The part of `range` that `rank` adds up.
fn slice_of(rank: usize, world: usize, range: Range<usize>) -> Range<usize> {
    let each = range.len().div_ceil(world).next_multiple_of(SLICE_ALIGN);
    let at = |rank: usize| range.start + (each * rank).min(range.len());
    at(rank)..at(rank + 1)
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
