//! Collectives on numbers of every kind, over every arrangement of ranks, against plain arithmetic
//! and to the bit.

use std::ops::Range;

use lockstep_collective::{
    Backend, Dtype, Formed, Lease, OwnArena, ProcessGroup, ReduceOp, Source, Span, SumOp, SumOrder,
    Topology, What, part_of,
};
use proptest::prelude::*;

use crate::harness::{PATIENT, Site, any_nodes, as_ranks, plan, value};

const WHAT: What = What::Numbers;

/// Puts bytes into own arena 0 from the first float on.
fn put(arena: &mut OwnArena, bytes: &[u8]) {
    let words = bytes.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        f32::from_bits(u32::from_ne_bytes(word))
    });
    let floats = arena.floats_mut(0, 0..bytes.len().div_ceil(4));
    floats.iter_mut().zip(words).for_each(|(float, word)| *float = word);
}

fn get(arena: &OwnArena, len: usize) -> Vec<u8> {
    let floats = arena.floats(0, 0..len.div_ceil(4));
    let mut bytes: Vec<u8> =
        floats.iter().flat_map(|float| float.to_bits().to_ne_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// What `rank` brings: numbers of `dtype` in their own bytes.
fn drawn(dtype: Dtype, rank: usize, len: usize, seed: u64) -> Vec<u8> {
    let bits =
        |index: usize| ((index * 64 + rank + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed;
    let small = |index: usize| (bits(index) >> 40) as f32 / 1000.0 - 8000.0;
    let number = |index: usize| -> Vec<u8> {
        match dtype {
            Dtype::F32 => small(index).to_ne_bytes().to_vec(),
            Dtype::F64 => (f64::from(small(index)) / 3.0).to_ne_bytes().to_vec(),
            Dtype::I64 => bits(index).to_ne_bytes().to_vec(),
            // Upper halves of floats are bf16; those of f16 are written from a table of sane bits.
            Dtype::Bf16 => ((small(index).to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
            Dtype::F16 => ((bits(index) >> 20) as u16 & 0xBBFF).to_ne_bytes().to_vec(),
        }
    };
    (0..len).flat_map(number).collect()
}

/// What one collective does with `lease` and `span`.
type Collective<'a> = &'a (dyn Fn(&mut dyn ProcessGroup, Lease, Span) -> Lease + Sync);

/// Everybody's numbers after a collective.
fn run(
    nodes: &[usize],
    dtype: Dtype,
    len: usize,
    seed: u64,
    collective: Collective<'_>,
) -> Vec<Vec<u8>> {
    let bytes = len * dtype.bytes();
    let plan = plan(nodes, &[bytes.div_ceil(4).next_multiple_of(2) + 2]);
    let site = Site::new(nodes);
    as_ranks(0..plan.world(), |rank| {
        let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
        put(&mut arena, &drawn(dtype, rank, len, seed));
        let lease = arena.lease(0..1, 0..plan.arena_len);
        drop(collective(&mut group, lease, Span { first: 0, dtype, len }));
        // Nobody closes while others still work.
        group.barrier().unwrap();
        Box::new(group).leave();
        get(&arena, bytes)
    })
}

fn any_dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![
        Just(Dtype::F32),
        Just(Dtype::F64),
        Just(Dtype::I64),
        Just(Dtype::Bf16),
        Just(Dtype::F16)
    ]
}

/// Shorter than the world, small enough to be exchanged whole, and of several pieces.
fn any_len() -> impl Strategy<Value = usize> {
    prop_oneof![0..8_usize, 8..3000_usize, 60_000..150_000_usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// In rank order, however the ranks are spread: the bits of one node are everybody's.
    #[test]
    fn an_all_reduce_has_the_same_bits_over_any_nodes(
        nodes in any_nodes(),
        dtype in any_dtype(),
        len in any_len(),
        seed in any::<u64>(),
        op in prop_oneof![Just(ReduceOp::Sum), Just(ReduceOp::Avg), Just(ReduceOp::Max)],
    ) {
        let world = nodes.iter().sum();
        let op = if dtype == Dtype::I64 && op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        let order = SumOrder::in_rank_order(0..world);
        let reduce = |group: &mut dyn ProcessGroup, lease, span| {
            group.all_reduce(WHAT, lease, span, op, &order).unwrap()
        };
        let alone = run(&[world], dtype, len, seed, &reduce);
        let spread = run(&nodes, dtype, len, seed, &reduce);
        for rank in 0..world {
            prop_assert!(alone[rank] == alone[0], "rank {} of one node", rank);
            prop_assert!(spread[rank] == alone[0], "rank {} of {:?}", rank, nodes);
        }
        if dtype == Dtype::I64 {
            let word = |bytes: &[u8], at: usize| {
                i64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap())
            };
            let brought: Vec<Vec<u8>> = (0..world).map(|rank| drawn(dtype, rank, len, seed)).collect();
            for at in 0..len {
                let all = brought.iter().map(|bytes| word(bytes, at));
                let expected = match op {
                    ReduceOp::Max => all.max().unwrap(),
                    _ => all.fold(0, i64::wrapping_add),
                };
                prop_assert_eq!(word(&alone[0], at), expected);
            }
        }
    }

    #[test]
    fn a_reduce_scatter_and_an_all_gather_are_an_all_reduce(
        nodes in any_nodes(),
        dtype in any_dtype(),
        len in any_len(),
        seed in any::<u64>(),
    ) {
        let world: usize = nodes.iter().sum();
        let order = SumOrder::in_rank_order(0..world);
        let whole = run(&nodes, dtype, len, seed, &|group, lease, span| {
            group.all_reduce(WHAT, lease, span, ReduceOp::Sum, &order).unwrap()
        });
        let halves = run(&nodes, dtype, len, seed, &|group, lease, span| {
            let lease = group.reduce_scatter(WHAT, lease, span, ReduceOp::Sum, &order).unwrap();
            group.all_gather(WHAT, lease, span).unwrap()
        });
        prop_assert!(whole == halves);
        let scattered = run(&nodes, dtype, len, seed, &|group, lease, span| {
            group.reduce_scatter(WHAT, lease, span, ReduceOp::Sum, &order).unwrap()
        });
        for (rank, scattered) in scattered.iter().enumerate() {
            let part = part_of(rank, world, len, dtype);
            let bytes = part.start * dtype.bytes()..part.end * dtype.bytes();
            prop_assert!(scattered[bytes.clone()] == whole[0][bytes], "rank {}", rank);
        }
    }

    #[test]
    fn a_broadcast_and_an_all_gather_move_bits_as_they_are(
        nodes in any_nodes(),
        dtype in any_dtype(),
        len in any_len(),
        seed in any::<u64>(),
    ) {
        let world: usize = nodes.iter().sum();
        let root = seed as usize % world;
        let cast = run(&nodes, dtype, len, seed, &|group, lease, span| {
            group.broadcast(WHAT, root, lease, span).unwrap()
        });
        prop_assert!(cast.iter().all(|bytes| *bytes == drawn(dtype, root, len, seed)));
        let gathered = run(&nodes, dtype, len, seed, &|group, lease, span| {
            group.all_gather(WHAT, lease, span).unwrap()
        });
        let expected: Vec<u8> = (0..world)
            .flat_map(|rank| {
                let part: Range<usize> = part_of(rank, world, len, dtype);
                drawn(dtype, rank, len, seed)[part.start * dtype.bytes()..part.end * dtype.bytes()].to_vec()
            })
            .collect();
        prop_assert!(gathered.iter().all(|bytes| *bytes == expected));
    }

    /// Orders that take two arenas of each rank and join them as a tree; and node by node.
    #[test]
    fn any_order_has_the_same_bits_over_any_nodes(
        nodes in any_nodes(),
        len in prop_oneof![1..2000_usize, 60_000..90_000_usize],
    ) {
        let world: usize = nodes.iter().sum();
        let mut ops = Vec::new();
        for rank in 0..world {
            ops.push(SumOp::Push(Source { rank, slot: 0 }));
            ops.push(SumOp::AddSource(Source { rank, slot: 1 }));
        }
        ops.extend((1..world).map(|_| SumOp::Add));
        let tree = SumOrder::new(ops).unwrap();
        let topology = Site::new(&nodes).topology;
        let by_node = SumOrder::by_node(&topology, |rank| rank != 1);
        for (order, slots) in [(tree, 2), (by_node, 1)] {
            let sums = |nodes: &[usize]| {
                let plan = plan(nodes, &[len]);
                let site = Site::new(nodes);
                as_ranks(0..world, |rank| {
                    let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
                    for slot in 0..2 {
                        for (index, float) in arena.floats_mut(slot, 0..len).iter_mut().enumerate() {
                            *float = value(rank + 7 * slot, index);
                        }
                    }
                    let lease = arena.lease(0..slots, 0..len);
                    let span = Span::floats(0..len);
                    let what = What::Bucket(0);
                    drop(group.all_reduce(what, lease, span, ReduceOp::Sum, &order).unwrap());
                    group.barrier().unwrap();
                    Box::new(group).leave();
                    get(&arena, 4 * len)
                })
            };
            let (alone, spread) = (sums(&[world]), sums(&nodes));
            prop_assert!(spread.iter().all(|bytes| *bytes == alone[0]));
        }
    }
}

#[test]
fn a_sum_of_floats_is_in_rank_order() {
    let order = SumOrder::in_rank_order(0..3);
    let sums = run(&[3], Dtype::F32, 500, 7, &|group, lease, span| {
        group.all_reduce(WHAT, lease, span, ReduceOp::Sum, &order).unwrap()
    });
    let float =
        |bytes: &[u8], at: usize| f32::from_ne_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap());
    let brought: Vec<Vec<u8>> = (0..3).map(|rank| drawn(Dtype::F32, rank, 500, 7)).collect();
    for at in 0..500 {
        let [a, b, c] = [0, 1, 2].map(|rank| float(&brought[rank], at));
        assert_eq!(float(&sums[0], at).to_bits(), ((a + b) + c).to_bits());
    }
}

#[test]
fn encrypted_numbers_are_the_same() {
    let plan = plan(&[1, 2], &[100_000]);
    let mut site = Site::new(&plan.nodes);
    site.encrypt = true;
    let sums = as_ranks(0..3, |rank| {
        let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
        arena.floats_mut(0, 0..100_000).fill(value(rank, 3));
        let (lease, span) = (arena.lease(0..1, 0..100_000), Span::floats(0..100_000));
        let order = SumOrder::in_rank_order(0..3);
        drop(group.all_reduce(WHAT, lease, span, ReduceOp::Sum, &order).unwrap());
        group.barrier().unwrap();
        Box::new(group).leave();
        arena.floats(0, 0..100_000).to_vec()
    });
    let expected = (value(0, 3) + value(1, 3)) + value(2, 3);
    assert!(sums.iter().flatten().all(|sum| *sum == expected));
}

#[test]
fn groups_know_what_carries_them() {
    for (nodes, backend) in
        [(vec![2], Backend::Shm), (vec![1, 1], Backend::Tcp), (vec![2, 1], Backend::Hier)]
    {
        let plan = plan(&nodes, &[4]);
        let site = Site::new(&nodes);
        let backends = as_ranks(0..plan.world(), |rank| {
            let Formed { mut group, .. } = site.form(rank, &plan, PATIENT).unwrap();
            group.barrier().unwrap();
            let backend = group.backend();
            Box::new(group).leave();
            backend
        });
        assert!(backends.iter().all(|found| *found == backend), "{backends:?}");
    }
}

#[test]
fn two_groups_in_one_process_do_not_meet() {
    let plan = plan(&[2], &[64]);
    let (one, two) = (Site::new(&[2]), Site::new(&[2]));
    let sums = as_ranks(0..4, |thread| {
        let (site, rank, factor) =
            if thread < 2 { (&one, thread, 1.0) } else { (&two, thread - 2, 10.0) };
        let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
        let order = SumOrder::in_rank_order(0..2);
        for _ in 0..50 {
            arena.floats_mut(0, 0..64).fill(factor);
            let (lease, span) = (arena.lease(0..1, 0..64), Span::floats(0..64));
            drop(group.all_reduce(What::Bucket(0), lease, span, ReduceOp::Sum, &order).unwrap());
            assert_eq!(arena.floats(0, 0..64), [2.0 * factor; 64]);
        }
        Box::new(group).leave();
        arena.floats(0, 0..1)[0]
    });
    assert_eq!(sums, [2.0, 2.0, 20.0, 20.0]);
}

#[test]
fn many_rounds_lose_no_wake_up() {
    for nodes in [vec![4], vec![2, 2]] {
        let plan = plan(&nodes, &[4]);
        let site = Site::new(&nodes);
        as_ranks(0..4, |rank| {
            let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
            let order = SumOrder::in_rank_order(0..4);
            for round in 0..500 {
                arena.floats_mut(0, 0..1)[0] = round as f32;
                let (lease, span) = (arena.lease(0..1, 0..1), Span::floats(0..1));
                drop(group.all_reduce(WHAT, lease, span, ReduceOp::Sum, &order).unwrap());
                assert_eq!(arena.floats(0, 0..1), [4.0 * round as f32]);
            }
            group.barrier().unwrap();
            Box::new(group).leave();
        });
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_begun() {
    let plan = plan(&[1], &[8]);
    let site = Site::new(&[1]);
    let Formed { mut group, mut arena, .. } = site.form(0, &plan, PATIENT).unwrap();
    let order = SumOrder::in_rank_order(0..1);
    let mut refused = |span: Span, op, order: &SumOrder| {
        let lease = arena.lease(0..1, 0..4);
        group.all_reduce(WHAT, lease, span, op, order).unwrap_err().to_string()
    };
    let integers = Span { first: 0, dtype: Dtype::I64, len: 2 };
    assert_eq!(refused(integers, ReduceOp::Avg, &order), "a mean of integers is none");
    let long = refused(Span::floats(0..5), ReduceOp::Sum, &order);
    assert!(long.contains("does not lie under the lease of 0..4"), "{long}");
    let two = SumOrder::in_rank_order(0..2);
    assert_eq!(refused(Span::floats(0..4), ReduceOp::Sum, &two), "an order over 2 ranks of 1");
    // The group still works.
    let lease = arena.lease(0..1, 0..4);
    group.all_reduce(WHAT, lease, Span::floats(0..4), ReduceOp::Sum, &order).unwrap();
    let topology = Topology::one_node(1);
    assert_eq!(group.topology(), &topology);
}
