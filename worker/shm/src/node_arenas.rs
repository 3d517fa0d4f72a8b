//! Everybody's arenas on this node, as the communication thread sees them.
#![expect(unsafe_code, reason = "reads and writes other ranks' mapped numbers by pointer")]

use std::{ops::Range, slice, sync::Arc};

use crate::{
    ArenaShape, Dtype, Lease, Mapping, OwnArena, arena::Leases, copy::copy_by_pointer,
    dtype::Stacks,
};

/// Numbers of one kind in a leased range of an arena, from its first float on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The float of the arena where they begin; even for numbers of 8 bytes.
    pub first: usize,
    /// Their kind.
    pub dtype: Dtype,
    /// How many numbers.
    pub len: usize,
}

impl Span {
    /// All floats of `range`.
    pub fn floats(range: Range<usize>) -> Self {
        Self { first: range.start, dtype: Dtype::F32, len: range.len() }
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.bytes())
    }
}

/// One arena that takes part in a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Whose.
    pub rank: usize,
    /// Which of them.
    pub slot: usize,
}

/// The way to everybody's arenas. Belongs to a communication thread; of several, each has one and leases of its own.
///
/// Everything here must run between the two rounds of a collective: every rank of the node has
/// leased the range, and no two touch the same numbers.
#[derive(Debug)]
pub struct NodeArenas {
    map: Arc<Mapping>,
    pub(crate) shape: ArenaShape,
    pub(crate) own: usize,
    lane: usize,
    leases: Leases,
    pub(crate) stacks: Stacks,
}

impl NodeArenas {
    pub(crate) fn new(arena: &OwnArena, lane: usize) -> Self {
        let OwnArena { map, shape, own, leases } = arena;
        let (map, leases) = (Arc::clone(map), Arc::clone(leases));
        Self { map, shape: *shape, own: *own, lane, leases, stacks: Stacks::default() }
    }

    /// This rank, counted from 0 on its node.
    pub fn own_rank(&self) -> usize {
        self.own
    }

    /// Bytes of the numbers `part` of `span` in own arena `slot`.
    ///
    /// # Panics
    /// If they do not lie under `lease`.
    pub fn bytes(&self, lease: &Lease, slot: usize, span: Span, part: Range<usize>) -> &[u8] {
        let (first, len) = self.checked(lease, span, &part);
        assert!(lease.slots().contains(&slot), "arena {slot} is not under the lease");
        let base = self.base(self.own, slot);
        // SAFETY: in bounds (`checked`); the lease keeps this process's other threads out, and the
        // protocol other processes; `&self` excludes the writers below.
        unsafe { slice::from_raw_parts(base.add(first), len) }
    }

    /// The same bytes of own arena 0, to be written.
    ///
    /// # Panics
    /// If they do not lie under `lease`.
    pub fn bytes_mut(&mut self, lease: &Lease, span: Span, part: Range<usize>) -> &mut [u8] {
        let (first, len) = self.checked(lease, span, &part);
        let base = self.base(self.own, 0);
        // SAFETY: as in `bytes`; `&mut self` excludes every other borrow.
        unsafe { slice::from_raw_parts_mut(base.add(first), len) }
    }

    /// All floats of own arena 0 under the lease, between two collectives on them.
    ///
    /// # Panics
    /// If arena 0 is not under it.
    pub fn floats_mut(&mut self, lease: &Lease) -> &mut [f32] {
        let range = lease.range();
        let (first, _) = self.checked(lease, Span::floats(range.clone()), &(0..range.len()));
        let base = self.base(self.own, 0);
        // SAFETY: as in `bytes_mut`; floats begin at multiples of their size.
        unsafe { slice::from_raw_parts_mut(base.add(first).cast(), range.len()) }
    }

    /// Gives the numbers `part` of own arena 0 to all other ranks of the node.
    ///
    /// # Panics
    /// If they do not lie under `lease`.
    pub fn spread(&mut self, lease: &Lease, span: Span, part: Range<usize>) {
        let own = self.own;
        for rank in (0..self.shape.ranks).filter(|rank| *rank != own) {
            self.copy(lease, span, part.clone(), own, rank);
        }
    }

    /// Takes the numbers `part` of arena 0 of `rank` into own arena 0.
    ///
    /// # Panics
    /// If they do not lie under `lease`.
    pub fn take_from(&mut self, rank: usize, lease: &Lease, span: Span, part: Range<usize>) {
        if rank != self.own {
            self.copy(lease, span, part, rank, self.own);
        }
    }

    fn copy(&mut self, lease: &Lease, span: Span, part: Range<usize>, from: usize, to: usize) {
        let (first, len) = self.checked(lease, span, &part);
        // SAFETY: in bounds (`checked`) of two arenas that do not overlap; both ranks have leased
        // the range, and nobody else touches this part of it.
        unsafe {
            copy_by_pointer(self.base(from, 0).add(first), self.base(to, 0).add(first), len);
        }
    }

    pub(crate) fn base(&self, rank: usize, slot: usize) -> *mut u8 {
        self.map.floats(self.shape, rank, slot).cast()
    }

    /// Checks everything that pointers rely on; the answer is first byte and number of bytes.
    pub(crate) fn checked(&self, lease: &Lease, span: Span, part: &Range<usize>) -> (usize, usize) {
        assert!(lease.lane == self.lane, "lane {} with a lease for {}", self.lane, lease.lane);
        assert!(Arc::ptr_eq(&lease.leases, &self.leases), "a lease of another arena");
        let (held, size) = (lease.range(), span.dtype.bytes());
        assert!(held.end <= self.shape.len, "a lease of {held:?} of {}", self.shape.len);
        let is_under = held.start <= span.first && span.first <= held.end && {
            span.bytes() <= (held.end - span.first) * size_of::<f32>()
        };
        assert!(is_under, "{span:?} under a lease of {held:?}");
        let first = span.first * size_of::<f32>();
        assert!(first.is_multiple_of(size), "{span:?} is not aligned");
        assert!(part.start <= part.end && part.end <= span.len, "{part:?} of {span:?}");
        assert!(lease.slots().contains(&0), "arena 0 receives the result and must be leased");
        (first + part.start * size, part.len() * size)
    }
}
