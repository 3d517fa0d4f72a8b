//! The kernel of the in-place all-reduce: add up the same range of several arenas, in a given
//! order, and write the sum to every rank.
#![expect(unsafe_code, reason = "reads and writes other ranks' mapped floats by pointer")]

use std::{ops::Range, ptr, sync::Arc};

use crate::{ArenaShape, Lease, Mapping};

/// Floats summed at a time: two of these and a source fit into the first-level cache.
pub const CHUNK_LEN: usize = 2048;

/// One arena that takes part in a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Whose.
    pub rank: usize,
    /// Which of them.
    pub slot: usize,
}

/// One operation of a sum, on a stack of partial sums. A program leaves exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumOp {
    /// Pushes a source.
    Push(Source),
    /// Adds a source to the top.
    AddSource(Source),
    /// Pops the top and adds it to the one below.
    Add,
}

/// What was found in a summed range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Whether a sum is infinite or not a number.
    pub is_non_finite: bool,
    /// Bit r: a source of rank r had such a value itself.
    pub ranks: u64,
}

/// The way to sum everybody's arenas. Belongs to the communication thread.
#[derive(Debug)]
pub struct Summer {
    map: Arc<Mapping>,
    shape: ArenaShape,
    own: usize,
    /// The stack of partial sums, [`CHUNK_LEN`] floats each.
    stack: Vec<f32>,
}

impl Summer {
    pub(crate) fn new(map: Arc<Mapping>, shape: ArenaShape, own: usize) -> Self {
        Self { map, shape, own, stack: Vec::new() }
    }

    /// Runs `program` over floats `range` and writes the sum to arena 0 of every rank.
    ///
    /// Must run between the two rounds of a collective: every rank has leased the range, and the
    /// ranks call this for disjoint ranges. An empty program writes zeros.
    ///
    /// # Panics
    /// If `range` is not inside `lease`, an own source is not, or the program does not leave one sum.
    pub fn sum(&mut self, lease: &Lease, range: Range<usize>, program: &[SumOp]) -> Found {
        let depth = self.checked_depth(lease, &range, program);
        self.stack.resize(depth.max(1) * CHUNK_LEN, 0.0);
        let mut found = Found::default();
        let mut start = range.start;
        while start < range.end {
            let len = CHUNK_LEN.min(range.end - start);
            let is_finite = self.sum_chunk(start, len, program);
            if !is_finite {
                found.is_non_finite = true;
                found.ranks |= self.non_finite_ranks(start, len, program);
            }
            for rank in 0..self.shape.ranks {
                // SAFETY: `start + len` is in bounds (`checked_depth`); every rank has leased the
                // range, so no reference to it exists anywhere, and ranks sum disjoint ranges.
                unsafe {
                    let to = self.map.floats(self.shape, rank, 0).add(start);
                    ptr::copy_nonoverlapping(self.stack.as_ptr(), to, len);
                }
            }
            start += len;
        }
        found
    }

    /// Copies floats from `range.start` on of arena 0 of `rank` into `into`.
    ///
    /// Must run between the two rounds of a collective: that rank has leased the range.
    ///
    /// # Panics
    /// If the range does not fit `into` or the arena.
    pub fn copy_from(&self, rank: usize, range: Range<usize>, into: &mut [f32]) {
        let is_inside = range.start <= range.end && range.end <= self.shape.len;
        assert!(is_inside && range.len() == into.len(), "copy of {range:?}");
        // SAFETY: in bounds; the owner has leased the range and nobody writes to it in this
        // collective; `into` is private memory of the caller, not part of the arenas' leased range.
        unsafe {
            let from = self.map.floats(self.shape, rank, 0).add(range.start);
            ptr::copy(from, into.as_mut_ptr(), into.len());
        }
    }

    /// Leaves the sum of a chunk at the bottom of the stack, and says whether it is finite.
    fn sum_chunk(&mut self, start: usize, len: usize, program: &[SumOp]) -> bool {
        let mut top = 0;
        for op in program {
            match *op {
                SumOp::Push(source) => {
                    let from = self.source(source, start);
                    // SAFETY: the source is in bounds and leased by its owner for this collective;
                    // the stack is private, and `checked_depth` sized it.
                    unsafe {
                        let to = self.stack.as_mut_ptr().add(top * CHUNK_LEN);
                        ptr::copy_nonoverlapping(from, to, len);
                    }
                    top += 1;
                }
                SumOp::AddSource(source) => {
                    let from = self.source(source, start);
                    let into = &mut self.stack[(top - 1) * CHUNK_LEN..][..len];
                    // SAFETY: as above; read by pointer, once, so that no reference to shared
                    // floats is made.
                    unsafe { add_from(into, from) };
                }
                SumOp::Add => {
                    let (left, right) = self.stack.split_at_mut((top - 1) * CHUNK_LEN);
                    let left = &mut left[(top - 2) * CHUNK_LEN..][..len];
                    for (left, right) in left.iter_mut().zip(&right[..len]) {
                        *left += *right;
                    }
                    top -= 1;
                }
            }
        }
        if program.is_empty() {
            self.stack[..len].fill(0.0);
        }
        are_finite(&self.stack[..len])
    }

    /// Which ranks brought a value that is not finite. Only asked when a sum is not.
    fn non_finite_ranks(&self, start: usize, len: usize, program: &[SumOp]) -> u64 {
        let mut ranks = 0;
        let mut copy = vec![0.0; len];
        for op in program {
            let (SumOp::Push(source) | SumOp::AddSource(source)) = *op else { continue };
            // SAFETY: as in `sum_chunk`; nothing has been written to this chunk yet.
            unsafe {
                ptr::copy_nonoverlapping(self.source(source, start), copy.as_mut_ptr(), len);
            };
            if !are_finite(&copy) {
                ranks |= 1 << source.rank;
            }
        }
        ranks
    }

    fn source(&self, source: Source, start: usize) -> *const f32 {
        // SAFETY: `start` is inside the arena (`checked_depth`).
        unsafe { self.map.floats(self.shape, source.rank, source.slot).add(start) }
    }

    /// Checks everything that the pointers rely on; the answer is the deepest stack.
    fn checked_depth(&self, lease: &Lease, range: &Range<usize>, program: &[SumOp]) -> usize {
        let held = lease.range();
        assert!(
            range.is_empty() || (held.start <= range.start && range.end <= held.end),
            "sum of {range:?} under a lease of {held:?}"
        );
        assert!(range.end <= self.shape.len, "sum of {range:?} of {}", self.shape.len);
        assert!(lease.slots().contains(&0), "arena 0 receives the sum and must be leased");
        let (mut depth, mut deepest) = (0_usize, 0);
        for op in program {
            match op {
                SumOp::Push(source) | SumOp::AddSource(source) => {
                    assert!(
                        source.rank < self.shape.ranks && source.slot < self.shape.slots,
                        "{source:?} in {:?}",
                        self.shape
                    );
                    assert!(
                        source.rank != self.own || lease.slots().contains(&source.slot),
                        "{source:?} is not under the lease of arenas {:?}",
                        lease.slots()
                    );
                    match op {
                        SumOp::Push(_) => depth += 1,
                        SumOp::AddSource(_) | SumOp::Add => {
                            assert!(1 <= depth, "a source is added to nothing");
                        }
                    }
                }
                SumOp::Add => {
                    assert!(2 <= depth, "two sums are added where there are {depth}");
                    depth -= 1;
                }
            }
            deepest = deepest.max(depth);
        }
        assert!(depth == usize::from(!program.is_empty()), "the program leaves {depth} sums");
        deepest
    }
}

/// `into[i] += from[i]`.
///
/// # Safety
/// `from` points at `into.len()` floats that are readable and not written meanwhile.
unsafe fn add_from(into: &mut [f32], from: *const f32) {
    for (index, into) in into.iter_mut().enumerate() {
        // SAFETY: `index` is below the length the caller vouched for.
        *into += unsafe { *from.add(index) };
    }
}

/// Branch-free, so that it is done in vectors.
fn are_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let worst = values
        .iter()
        .fold(0, |worst, value| worst | u32::from(value.to_bits() & EXPONENT == EXPONENT));
    worst == 0
}
