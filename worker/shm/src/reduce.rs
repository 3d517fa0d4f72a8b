//! The kernel of the in-place all-reduce: combine the same numbers of several arenas, in a given
//! order, and write the result to every rank.
#![expect(unsafe_code, reason = "reads and writes other ranks' mapped numbers by pointer")]

use std::{mem, ops::Range};

use half::{bf16, f16};

use crate::{
    Combine, Dtype, Lease, NodeArenas, Source, Span, copy::copy_by_pointer, dtype::Element,
};

/// Numbers combined at a time: two of these and a source fit into the first-level cache.
pub const CHUNK_LEN: usize = 2048;

/// What a reduction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// An arena of this node; ranks count from 0 on it.
    Arena(Source),
    /// Numbers that came from elsewhere: an index into [`Reduce::staged`].
    Staged(usize),
}

/// One operation of a reduction, on a stack of partial results. A program leaves exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumOp<T> {
    /// Pushes numbers.
    Push(T),
    /// Combines numbers with the top.
    AddSource(T),
    /// Pops the top and combines it with the one below.
    Add,
}

/// What was found in a reduced range.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Whether a result is infinite or not a number.
    pub is_non_finite: bool,
    /// Bit r: an arena of rank r of this node had such a value itself.
    pub ranks: u64,
    /// Which staged numbers had such a value.
    pub staged: Vec<usize>,
}

impl Found {
    /// Takes in what was found elsewhere.
    pub fn merge(&mut self, other: Self) {
        self.is_non_finite |= other.is_non_finite;
        self.ranks |= other.ranks;
        self.staged.extend(other.staged);
        self.staged.sort_unstable();
        self.staged.dedup();
    }
}

/// One reduction over numbers `part` of `span`.
#[derive(Debug, Clone)]
pub struct Reduce<'a> {
    /// The numbers of the collective.
    pub span: Span,
    /// Which of them are reduced here.
    pub part: Range<usize>,
    /// In which order. An empty program gives zeros.
    pub program: &'a [SumOp<Term>],
    /// Numbers that came from elsewhere, the bytes of `part` each.
    pub staged: &'a [&'a [u8]],
    /// Sum or maximum.
    pub combine: Combine,
    /// What the result is divided by at the end.
    pub divisor: Option<usize>,
}

/// Where a result goes.
enum Sink<'a> {
    /// Arena 0 of these ranks of the node.
    Arenas(Range<usize>),
    /// Private memory.
    Bytes(&'a mut [u8]),
}

impl NodeArenas {
    /// Runs the reduction and writes the result to arena 0 of every rank of the node.
    ///
    /// # Panics
    /// If the span does not lie under `lease`, an own source does not, or the program leaves no
    /// single result.
    pub fn reduce(&mut self, lease: &Lease, reduce: &Reduce<'_>) -> Found {
        self.dispatch(lease, reduce, Sink::Arenas(0..self.shape.ranks))
    }

    /// Runs the reduction and writes the result to own arena 0.
    ///
    /// # Panics
    /// As [`NodeArenas::reduce`].
    pub fn reduce_own(&mut self, lease: &Lease, reduce: &Reduce<'_>) -> Found {
        self.dispatch(lease, reduce, Sink::Arenas(self.own..self.own + 1))
    }

    /// Runs the reduction and writes the result into `into`, in bytes.
    ///
    /// # Panics
    /// As [`NodeArenas::reduce`], and if `into` has another length.
    pub fn partial(&mut self, lease: &Lease, reduce: &Reduce<'_>, into: &mut [u8]) -> Found {
        let bytes = reduce.part.len() * reduce.span.dtype.bytes();
        assert!(into.len() == bytes, "{bytes} bytes into {}", into.len());
        self.dispatch(lease, reduce, Sink::Bytes(into))
    }

    fn dispatch(&mut self, lease: &Lease, reduce: &Reduce<'_>, sink: Sink<'_>) -> Found {
        match reduce.span.dtype {
            Dtype::F32 => self.run::<f32>(lease, reduce, sink),
            Dtype::F64 => self.run::<f64>(lease, reduce, sink),
            Dtype::I64 => self.run::<i64>(lease, reduce, sink),
            Dtype::Bf16 => self.run::<bf16>(lease, reduce, sink),
            Dtype::F16 => self.run::<f16>(lease, reduce, sink),
        }
    }

    fn run<E: Element>(&mut self, lease: &Lease, reduce: &Reduce<'_>, mut sink: Sink<'_>) -> Found {
        let (first, _) = self.checked(lease, reduce.span, &reduce.part);
        let depth = self.checked_depth(lease, reduce);
        let mut stacks = mem::take(&mut self.stacks);
        let stack = E::stack(&mut stacks);
        if stack.len() < depth.max(1) * CHUNK_LEN {
            stack.resize(depth.max(1) * CHUNK_LEN, E::Acc::default());
        }
        let mut found = Found::default();
        for start in (0..reduce.part.len()).step_by(CHUNK_LEN) {
            let len = CHUNK_LEN.min(reduce.part.len() - start);
            let chunk = Chunk { first, offset: start * size_of::<E>(), len };
            self.combine_chunk::<E>(reduce, chunk, stack);
            let result = &mut stack[..len];
            if let Some(divisor) = reduce.divisor {
                E::divide(result, divisor);
            }
            if !E::are_finite(result) {
                found.merge(self.culprits::<E>(reduce, chunk));
            }
            self.put::<E>(&stack[..len], chunk, &mut sink);
        }
        self.stacks = stacks;
        found
    }

    /// Leaves the result of a chunk at the bottom of the stack.
    fn combine_chunk<E: Element>(&self, reduce: &Reduce<'_>, chunk: Chunk, stack: &mut [E::Acc]) {
        let mut top = 0;
        for op in reduce.program {
            match *op {
                SumOp::Push(term) => {
                    let into = &mut stack[top * CHUNK_LEN..][..chunk.len];
                    // SAFETY: the term has so many numbers (`checked`, `checked_depth`), and
                    // nobody writes to them in this round; the stack is private.
                    unsafe { E::widen(self.numbers(reduce, term, chunk), into) };
                    top += 1;
                }
                SumOp::AddSource(term) => {
                    let into = &mut stack[(top - 1) * CHUNK_LEN..][..chunk.len];
                    // SAFETY: as above.
                    unsafe { E::fold(reduce.combine, self.numbers(reduce, term, chunk), into) };
                }
                SumOp::Add => {
                    let (left, right) = stack.split_at_mut((top - 1) * CHUNK_LEN);
                    let left = &mut left[(top - 2) * CHUNK_LEN..][..chunk.len];
                    E::join(reduce.combine, left, &right[..chunk.len]);
                    top -= 1;
                }
            }
        }
        if reduce.program.is_empty() {
            stack[..chunk.len].fill(E::Acc::default());
        }
    }

    fn put<E: Element>(&self, result: &[E::Acc], chunk: Chunk, sink: &mut Sink<'_>) {
        match sink {
            Sink::Arenas(ranks) => {
                for rank in ranks.clone() {
                    // SAFETY: in bounds (`checked`); every rank has leased the range, so no
                    // reference to it exists anywhere, and ranks reduce disjoint parts. Arenas
                    // begin on pages and spans are aligned to their kind of number.
                    unsafe {
                        let to = self.base(rank, 0).add(chunk.first + chunk.offset);
                        E::narrow(result, to.cast());
                    }
                }
            }
            Sink::Bytes(bytes) => {
                let mut narrow = [0_u64; CHUNK_LEN];
                let to = &mut bytes[chunk.offset..][..chunk.len * size_of::<E>()];
                // SAFETY: `narrow` is private, aligned for every kind and large enough.
                unsafe {
                    E::narrow(result, narrow.as_mut_ptr().cast());
                    copy_by_pointer(narrow.as_ptr().cast(), to.as_mut_ptr(), to.len());
                }
            }
        }
    }

    /// Who brought a value that is not finite. Only asked when a result is not.
    fn culprits<E: Element>(&self, reduce: &Reduce<'_>, chunk: Chunk) -> Found {
        let mut found = Found { is_non_finite: true, ..Found::default() };
        let mut copy = vec![E::Acc::default(); chunk.len];
        for op in reduce.program {
            let (SumOp::Push(term) | SumOp::AddSource(term)) = *op else { continue };
            // SAFETY: as in `combine_chunk`; nothing has been written to this chunk yet.
            unsafe { E::widen(self.numbers(reduce, term, chunk), &mut copy) };
            if !E::are_finite(&copy) {
                match term {
                    Term::Arena(source) => found.ranks |= 1 << source.rank,
                    Term::Staged(index) => found.staged.push(index),
                }
            }
        }
        found
    }

    fn numbers<E: Element>(&self, reduce: &Reduce<'_>, term: Term, chunk: Chunk) -> *const E {
        match term {
            // SAFETY: in bounds (`checked`).
            Term::Arena(Source { rank, slot }) => unsafe {
                self.base(rank, slot).add(chunk.first + chunk.offset).cast_const().cast()
            },
            Term::Staged(index) => reduce.staged[index][chunk.offset..].as_ptr().cast(),
        }
    }

    /// Checks everything that the pointers rely on; the answer is the deepest stack.
    fn checked_depth(&self, lease: &Lease, reduce: &Reduce<'_>) -> usize {
        let bytes = reduce.part.len() * reduce.span.dtype.bytes();
        let (mut depth, mut deepest) = (0_usize, 0);
        for op in reduce.program {
            match op {
                SumOp::Push(term) | SumOp::AddSource(term) => {
                    self.check_term(lease, reduce, *term, bytes);
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
        let expected = usize::from(!reduce.program.is_empty());
        assert!(depth == expected, "the program leaves {depth} sums");
        deepest
    }

    fn check_term(&self, lease: &Lease, reduce: &Reduce<'_>, term: Term, bytes: usize) {
        match term {
            Term::Arena(source) => {
                let is_there = source.rank < self.shape.ranks && source.slot < self.shape.slots;
                assert!(is_there, "{source:?} in {:?}", self.shape);
                let is_held = source.rank != self.own || lease.slots().contains(&source.slot);
                assert!(is_held, "{source:?} is not under the lease of arenas {:?}", lease.slots());
            }
            Term::Staged(index) => {
                let staged = reduce.staged[index];
                assert!(staged.len() == bytes, "{} staged bytes of {bytes}", staged.len());
                let is_aligned = staged.as_ptr().addr().is_multiple_of(reduce.span.dtype.bytes());
                assert!(is_aligned, "staged numbers {index} are not aligned");
            }
        }
    }
}

/// Some of the numbers of a reduction.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// The first byte of the reduction's part in an arena.
    first: usize,
    /// Bytes from there to the chunk.
    offset: usize,
    /// Numbers.
    len: usize,
}
