//! Reductions over the arenas of a node, against plain arithmetic.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{ops::Range, os::fd::OwnedFd, sync::Arc};

use half::{bf16, f16};
use lockstep_shm::{
    ArenaShape, Buffer, CONTROL_BYTES, Combine, Dtype, Found, Mapping, NodeArenas, OwnArena,
    Reduce, Source, Span, SumOp, Term, create_group_memory, size_group_memory,
};
use proptest::prelude::*;

fn sized(shape: ArenaShape) -> OwnedFd {
    let fd = create_group_memory().unwrap();
    size_group_memory(&fd, CONTROL_BYTES + shape.bytes()).unwrap();
    fd
}

/// Two mappings of one file behave as two processes would.
fn mapped(fd: &OwnedFd, shape: ArenaShape, rank: usize) -> (OwnArena, NodeArenas) {
    let bytes = CONTROL_BYTES + shape.bytes();
    let map = Arc::new(Mapping::of_file(fd, bytes, CONTROL_BYTES).unwrap());
    let (arena, mut lanes) = map.take_floats(shape, rank, 1).unwrap();
    (arena, lanes.remove(0))
}

fn arena(rank: usize, slot: usize) -> Term {
    Term::Arena(Source { rank, slot })
}

fn in_order(terms: impl IntoIterator<Item = Term>) -> Vec<SumOp<Term>> {
    let op = |(index, term)| if index == 0 { SumOp::Push(term) } else { SumOp::AddSource(term) };
    terms.into_iter().enumerate().map(op).collect()
}

fn sum<'a>(span: Span, part: Range<usize>, program: &'a [SumOp<Term>]) -> Reduce<'a> {
    Reduce { span, part, program, staged: &[], combine: Combine::Sum, divisor: None }
}

#[test]
fn what_is_not_finite_is_found_with_its_rank() {
    let shape = ArenaShape { ranks: 3, slots: 1, len: 5000 };
    let fd = sized(shape);
    let mut ranks: Vec<_> = (0..3).map(|rank| mapped(&fd, shape, rank)).collect();
    ranks[2].0.floats_mut(0, 4000..4001)[0] = f32::NAN;
    let program = in_order((0..3).map(|rank| arena(rank, 0)));
    let span = Span::floats(0..5000);
    let (own, arenas) = &mut ranks[0];
    let lease = own.lease(0..1, 0..5000);
    assert_eq!(arenas.reduce(&lease, &sum(span, 0..4000, &program)), Found::default());
    let found = arenas.reduce(&lease, &sum(span, 4000..5000, &program));
    assert_eq!((found.is_non_finite, found.ranks), (true, 0b100));

    // Both are finite, their sum is not: nobody's fault.
    for (own, _) in &mut ranks[1..] {
        own.floats_mut(0, 0..1)[0] = f32::MAX;
    }
    let found = ranks[0].1.reduce(&lease, &sum(span, 0..1, &program));
    assert_eq!((found.is_non_finite, found.ranks), (true, 0));

    // A number that came from elsewhere.
    let mut staged = Buffer::default();
    staged.resize(4);
    staged.bytes_mut().copy_from_slice(&f32::INFINITY.to_ne_bytes());
    let program = in_order([arena(0, 0), Term::Staged(0)]);
    let reduce = Reduce { staged: &[staged.bytes()], ..sum(span, 7..8, &program) };
    let found = ranks[0].1.reduce(&lease, &reduce);
    assert_eq!((found.ranks, found.staged), (0, vec![0]));
}

#[test]
fn a_half_float_that_overflows_is_infinite_and_found() {
    for (dtype, large) in [(Dtype::F16, 40_000.0), (Dtype::Bf16, 3.0e38)] {
        let shape = ArenaShape { ranks: 2, slots: 1, len: 8 };
        let fd = sized(shape);
        let mut ranks: Vec<_> = (0..2).map(|rank| mapped(&fd, shape, rank)).collect();
        let bits = match dtype {
            Dtype::F16 => f16::from_f32(large).to_bits(),
            _ => bf16::from_f32(large).to_bits(),
        };
        for (own, _) in &mut ranks {
            own.floats_mut(0, 0..1)[0] = f32::from_bits(u32::from(bits));
        }
        let program = in_order([arena(0, 0), arena(1, 0)]);
        let (own, arenas) = &mut ranks[0];
        let lease = own.lease(0..1, 0..8);
        let found = arenas.reduce(&lease, &sum(Span { first: 0, dtype, len: 2 }, 0..2, &program));
        assert_eq!((found.is_non_finite, found.ranks), (true, 0), "{dtype:?}");
        drop(lease);
        let bits = ranks[1].0.floats(0, 0..1)[0].to_bits();
        let result = match dtype {
            Dtype::F16 => f16::from_bits(bits as u16).to_f32(),
            _ => bf16::from_bits(bits as u16).to_f32(),
        };
        assert_eq!(result, f32::INFINITY, "{dtype:?}");
    }
}

#[test]
#[should_panic(expected = "is not aligned")]
fn numbers_of_eight_bytes_begin_at_even_floats() {
    let shape = ArenaShape { ranks: 1, slots: 1, len: 8 };
    let (mut own, mut arenas) = mapped(&sized(shape), shape, 0);
    let lease = own.lease(0..1, 0..8);
    let span = Span { first: 1, dtype: Dtype::F64, len: 2 };
    arenas.reduce(&lease, &sum(span, 0..2, &in_order([arena(0, 0)])));
}

#[test]
#[should_panic(expected = "under a lease of")]
fn nothing_beside_the_lease_is_touched() {
    let shape = ArenaShape { ranks: 1, slots: 1, len: 8 };
    let (mut own, mut arenas) = mapped(&sized(shape), shape, 0);
    let lease = own.lease(0..1, 0..4);
    let span = Span { first: 0, dtype: Dtype::F64, len: 3 };
    arenas.reduce(&lease, &sum(span, 0..2, &in_order([arena(0, 0)])));
}

/// A kind of number, as the tests write and read it.
trait Number: Copy + PartialEq + std::fmt::Debug {
    const DTYPE: Dtype;
    fn drawn(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
    /// In the accumulator, in this order.
    fn combined(values: &[Self], combine: Combine, divisor: Option<usize>) -> Self;
}

macro_rules! float_number {
    ($number:ty, $dtype:ident, $acc:ty, $unsigned:ty, $widen:expr, $narrow:expr) => {
        impl Number for $number {
            const DTYPE: Dtype = Dtype::$dtype;
            fn drawn(bits: u64) -> Self {
                $narrow(((bits % 20_001) as $acc - 10_000.0) / 16.0)
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn of_bits(bits: u64) -> Self {
                Self::from_bits(bits as $unsigned)
            }
            fn combined(values: &[Self], combine: Combine, divisor: Option<usize>) -> Self {
                let wide: Vec<$acc> = values.iter().map(|value| $widen(*value)).collect();
                let all = wide[1..].iter().fold(wide[0], |all, value| match combine {
                    Combine::Sum => all + value,
                    Combine::Max => all.max(*value),
                });
                $narrow(divisor.map_or(all, |divisor| all / divisor as $acc))
            }
        }
    };
}

float_number!(f32, F32, f32, u32, |value| value, |value| value);
float_number!(f64, F64, f64, u64, |value| value, |value| value);
float_number!(bf16, Bf16, f32, u16, bf16::to_f32, bf16::from_f32);
float_number!(f16, F16, f32, u16, f16::to_f32, f16::from_f32);

impl Number for i64 {
    const DTYPE: Dtype = Dtype::I64;
    fn drawn(bits: u64) -> Self {
        bits.cast_signed()
    }
    fn bits(self) -> u64 {
        self.cast_unsigned()
    }
    fn of_bits(bits: u64) -> Self {
        bits.cast_signed()
    }
    fn combined(values: &[Self], combine: Combine, _: Option<usize>) -> Self {
        let all = values.iter().copied().reduce(|all, value| match combine {
            Combine::Sum => all.wrapping_add(value),
            Combine::Max => all.max(value),
        });
        all.unwrap()
    }
}

fn put<N: Number>(bytes: &mut [u8], values: impl Iterator<Item = N>) {
    let size = N::DTYPE.bytes();
    for (bytes, value) in bytes.chunks_exact_mut(size).zip(values) {
        bytes.copy_from_slice(&value.bits().to_ne_bytes()[..size]);
    }
}

fn get<N: Number>(bytes: &[u8]) -> Vec<N> {
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        N::of_bits(u64::from_ne_bytes(word))
    };
    bytes.chunks_exact(N::DTYPE.bytes()).map(number).collect()
}

/// Every rank's first arena and one array from elsewhere, combined in order, over a part of a span.
fn check<N: Number>(ranks: usize, len: usize, part: Range<usize>, seed: u64, combine: Combine) {
    let shape = ArenaShape { ranks, slots: 1, len: 2 * len + 64 };
    let fd = sized(shape);
    let span = Span { first: 16, dtype: N::DTYPE, len };
    let value = |rank: usize, index: usize| {
        N::drawn(((index * 8 + rank + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed)
    };
    let mut all: Vec<_> = (0..ranks).map(|rank| mapped(&fd, shape, rank)).collect();
    let leases: Vec<_> = all.iter_mut().map(|(own, _)| own.lease(0..1, 16..2 * len + 64)).collect();
    for (rank, (_, arenas)) in all.iter_mut().enumerate() {
        put(arenas.bytes_mut(&leases[rank], span, 0..len), (0..len).map(|at| value(rank, at)));
    }
    let mut staged = Buffer::default();
    staged.resize(part.len() * N::DTYPE.bytes());
    put(staged.bytes_mut(), part.clone().map(|at| value(7, at)));
    let divisor = (seed.is_multiple_of(2) && N::DTYPE != Dtype::I64).then_some(ranks);
    let program = in_order((0..ranks).map(|rank| arena(rank, 0)).chain([Term::Staged(0)]));
    let reduce = Reduce {
        span,
        part: part.clone(),
        program: &program,
        staged: &[staged.bytes()],
        combine,
        divisor,
    };
    let mut private = Buffer::default();
    private.resize(part.len() * N::DTYPE.bytes());
    all[0].1.partial(&leases[0], &reduce, private.bytes_mut());
    all[0].1.reduce(&leases[0], &reduce);
    for rank in 0..ranks {
        let seen = get::<N>(all[rank].1.bytes(&leases[rank], 0, span, 0..len));
        for (at, seen) in seen.into_iter().enumerate() {
            let expected = if part.contains(&at) {
                let mut values: Vec<N> = (0..ranks).map(|rank| value(rank, at)).collect();
                values.push(value(7, at));
                N::combined(&values, combine, divisor)
            } else {
                value(rank, at)
            };
            assert_eq!(seen.bits(), expected.bits(), "number {at} of rank {rank}");
        }
    }
    let reduced = get::<N>(all[0].1.bytes(&leases[0], 0, span, part));
    assert_eq!(get::<N>(private.bytes()), reduced);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_kind_of_number_is_combined_in_order_to_the_bit(
        ranks in 1..5_usize,
        len in 0..5000_usize,
        (from, to) in (0..5000_usize, 0..5000_usize),
        seed in any::<u64>(),
        is_sum in any::<bool>(),
    ) {
        let part = from.min(to).min(len)..from.max(to).min(len);
        let combine = if is_sum { Combine::Sum } else { Combine::Max };
        check::<f32>(ranks, len, part.clone(), seed, combine);
        check::<f64>(ranks, len, part.clone(), seed, combine);
        check::<i64>(ranks, len, part.clone(), seed, combine);
        check::<bf16>(ranks, len, part.clone(), seed, combine);
        check::<f16>(ranks, len, part, seed, combine);
    }

    #[test]
    fn a_tree_of_several_arenas_is_added_along_its_program(
        ranks in 1..5_usize,
        len in 0..5000_usize,
        seed in any::<u32>(),
    ) {
        let shape = ArenaShape { ranks, slots: 2, len };
        let fd = sized(shape);
        let value = |rank: usize, slot: usize, index: usize| {
            let bits = (index as u32 * 8 + slot as u32 * 4 + rank as u32).wrapping_mul(seed | 1);
            (bits >> 8) as f32 / 1000.0 - 5000.0
        };
        let mut all: Vec<_> = (0..ranks).map(|rank| mapped(&fd, shape, rank)).collect();
        for (rank, (own, _)) in all.iter_mut().enumerate() {
            for slot in 0..2 {
                for (index, float) in own.floats_mut(slot, 0..len).iter_mut().enumerate() {
                    *float = value(rank, slot, index);
                }
            }
        }
        // (r0s0 + r0s1), and to it in turn (r1s0 + r1s1) …
        let mut program = Vec::new();
        for rank in 0..ranks {
            program.extend([SumOp::Push(arena(rank, 0)), SumOp::AddSource(arena(rank, 1))]);
            program.extend((0 < rank).then_some(SumOp::Add));
        }
        let (own, arenas) = &mut all[0];
        let lease = own.lease(0..2, 0..len);
        arenas.reduce(&lease, &sum(Span::floats(0..len), 0..len, &program));
        drop(lease);
        for (own, _) in &all {
            for (index, float) in own.floats(0, 0..len).iter().enumerate() {
                let pair = |rank| value(rank, 0, index) + value(rank, 1, index);
                let expected = (1..ranks).fold(pair(0), |sum, rank| sum + pair(rank));
                prop_assert_eq!(float.to_bits(), expected.to_bits());
            }
        }
    }
}

#[test]
fn parts_are_given_to_and_taken_from_the_ranks_of_a_node() {
    let shape = ArenaShape { ranks: 3, slots: 1, len: 100 };
    let fd = sized(shape);
    let mut all: Vec<_> = (0..3).map(|rank| mapped(&fd, shape, rank)).collect();
    for (rank, (own, _)) in all.iter_mut().enumerate() {
        own.floats_mut(0, 0..100).fill(rank as f32);
    }
    let span = Span::floats(10..90);
    let lease = all[1].0.lease(0..1, 10..90);
    all[1].1.spread(&lease, span, 0..20);
    all[1].1.take_from(2, &lease, span, 70..80);
    drop(lease);
    for (rank, (own, _)) in all.iter().enumerate() {
        let own = own.floats(0, 0..100);
        let is = |range: Range<usize>, value: f32| own[range].iter().all(|float| *float == value);
        assert!(is(0..10, rank as f32) && is(10..30, 1.0) && is(30..80, rank as f32));
        assert!(is(80..90, if rank == 1 { 2.0 } else { rank as f32 }) && is(90..100, rank as f32));
    }
}
