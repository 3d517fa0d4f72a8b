//! Sums over the grains that all ranks compute at the same time, for batch norms: in a group of their own, because the
//! reducer's is busy with buckets meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockstep_collective::{
    CpuGroup, Dtype, Formed, GroupError, Lease, OwnArena, Plan, ProcessGroup, ReduceOp, Span,
    SumOrder, Topology, What,
};
use lockstep_tensor::Peers;

/// Numbers that are summed at once; more are summed in pieces.
const PIECE_LEN: usize = 4 << 10;

/// The other ranks, as the batch norms of a tape see them.
///
/// Every rank computes as many grains in a step as the one with the most: who has fewer stands in for the missing ones
/// with zeros ([`BatchPeers::stand_in`]), which needs to have seen one whole grain, if only in rehearsal.
#[derive(Debug)]
pub struct BatchPeers(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// Gone once it is left or given up.
    joined: Option<Joined>,
    /// How many numbers each sum of the grain in work had, forward and backward.
    sums: Vec<usize>,
    is_rehearsal: bool,
    failed: Option<GroupError>,
}

#[derive(Debug)]
struct Joined {
    group: CpuGroup,
    arena: OwnArena,
    order: SumOrder,
}

impl BatchPeers {
    /// The plan of the group.
    pub(crate) fn plan(topology: &Topology) -> Plan {
        Plan { nodes: topology.node_sizes(), arena_len: 2 * PIECE_LEN, slots: 1, ..Plan::default() }
    }

    pub(crate) fn new(formed: Formed) -> Self {
        let Formed { group, arena, board: _ } = formed;
        let order = SumOrder::in_rank_order(0..group.world_size());
        let joined = Some(Joined { group, arena, order });
        let (sums, is_rehearsal, failed) = (Vec::new(), false, None);
        Self(Mutex::new(Inner { joined, sums, is_rehearsal, failed }))
    }

    /// Before a grain's forward pass.
    pub fn begin_grain(&self) {
        self.lock().sums.clear();
    }

    /// Before the forward pass of a grain that only shows what a grain sums up: nobody else takes part.
    pub fn begin_rehearsal(&self) {
        let mut inner = self.lock();
        inner.sums.clear();
        inner.is_rehearsal = true;
    }

    /// After its backward pass.
    pub fn end_rehearsal(&self) {
        self.lock().is_rehearsal = false;
    }

    /// Whether it knows what a grain sums up.
    pub fn knows_a_grain(&self) -> bool {
        !self.lock().sums.is_empty()
    }

    /// Takes part in a grain that other ranks have and this one has not.
    ///
    /// # Errors
    /// As [`BatchPeers::check`].
    pub fn stand_in(&self) -> Result<(), GroupError> {
        let mut inner = self.lock();
        for len in inner.sums.clone() {
            inner.sum(&mut vec![0.0; len]);
        }
        inner.meet()
    }

    /// After a grain's backward pass. All ranks must have come as far: one whose grain made other sums is noticed here.
    ///
    /// # Errors
    /// As [`BatchPeers::check`].
    pub fn end_grain(&self) -> Result<(), GroupError> {
        self.lock().meet()
    }

    /// After a forward pass.
    ///
    /// # Errors
    /// Why not all of the sums since the beginning are sums; nothing that rests on them may be used.
    pub fn check(&self) -> Result<(), GroupError> {
        self.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Nobody waits for this rank any more: the others' sums end with an error.
    pub fn give_up(&self) {
        drop(self.lock().joined.take());
    }

    /// Does something with the group, unless it is left or given up.
    pub(crate) fn in_group(&self, say: impl FnOnce(&mut dyn ProcessGroup)) {
        if let Some(joined) = &mut self.lock().joined {
            say(&mut joined.group);
        }
    }

    /// Leaves without disturbing the others.
    pub(crate) fn leave(&self) {
        if let Some(joined) = self.lock().joined.take() {
            Box::new(joined.group).leave();
        }
    }

    /// What is inside is valid between any two statements.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers for BatchPeers {
    /// In rank order. Not a number once something has failed.
    fn sum(&self, values: &mut [f64]) {
        let mut inner = self.lock();
        inner.sums.push(values.len());
        if !inner.is_rehearsal {
            inner.sum(values);
        }
    }
}

impl Inner {
    fn sum(&mut self, values: &mut [f64]) {
        for piece in values.chunks_mut(PIECE_LEN) {
            if let Err(error) = self.sum_piece(piece) {
                self.failed.get_or_insert(error);
            }
        }
        if self.failed.is_some() {
            values.fill(f64::NAN);
        }
    }

    fn meet(&mut self) -> Result<(), GroupError> {
        let met = self.joined().and_then(|joined| joined.group.barrier());
        if let Err(error) = &met {
            self.failed.get_or_insert_with(|| error.clone());
        }
        met
    }

    /// The group, as long as all is well.
    fn joined(&mut self) -> Result<&mut Joined, GroupError> {
        match (&self.failed, &mut self.joined) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(joined)) => Ok(joined),
            (None, None) => Err(GroupError::Aborted { by: None }),
        }
    }

    fn sum_piece(&mut self, piece: &mut [f64]) -> Result<(), GroupError> {
        let Joined { group, arena, order } = self.joined()?;
        arena.doubles_mut(0, piece.len()).copy_from_slice(piece);
        let lease: Lease = arena.lease(0..1, 0..2 * piece.len());
        let span = Span { first: 0, dtype: Dtype::F64, len: piece.len() };
        group.all_reduce(What::Numbers, lease, span, ReduceOp::Sum, order)?;
        piece.copy_from_slice(arena.doubles_mut(0, piece.len()));
        Ok(())
    }
}
