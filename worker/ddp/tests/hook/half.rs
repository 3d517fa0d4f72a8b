//! Sums as 16-bit floats.

use half::{bf16, f16};
use lockstep_ddp::hook::{Bf16, Dtype, F16, Hook, Mean, Noop};
use proptest::prelude::*;

use crate::comm::on_ranks;

/// What each rank has after the hook. All have the same bits, but for what none of them defines.
fn reduced(hook: impl Hook + Clone + Sync, ranks: &[Vec<f32>]) -> (Vec<f32>, Vec<(Dtype, usize)>) {
    let all = on_ranks(ranks.len(), |rank, mut comm| {
        comm.bucket.clone_from(&ranks[rank]);
        hook.clone().reduce(0, &[], &mut comm).unwrap();
        (comm.bucket, comm.traffic)
    });
    let bits = |(bucket, _): &(Vec<f32>, _)| bucket.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(all.iter().all(|rank| bits(rank) == bits(&all[0])), "ranks differ");
    all.into_iter().next().unwrap()
}

/// A kind of 16 bits, as the other crate has it.
struct Kind {
    round: fn(f32) -> f32,
    decode: fn(u16) -> f32,
    encode: fn(f32) -> u16,
}

const BF16: Kind = Kind {
    round: |x| bf16::from_f32(x).to_f32(),
    decode: |bits| bf16::from_bits(bits).to_f32(),
    encode: |x| bf16::from_f32(x).to_bits(),
};
const F16_KIND: Kind = Kind {
    round: |x| f16::from_f32(x).to_f32(),
    decode: |bits| f16::from_bits(bits).to_f32(),
    encode: |x| f16::from_f32(x).to_bits(),
};

fn same(left: f32, right: f32) -> bool {
    left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
}

fn all_pass(hook: impl Hook + Clone + Sync, kind: &Kind) {
    let all: Vec<f32> = (0..=u16::MAX).map(kind.decode).collect();
    let (ours, _) = reduced(hook, std::slice::from_ref(&all));
    for (ours, number) in ours.iter().zip(&all) {
        assert!(same(*ours, *number), "{number:e} became {ours:e}");
    }
}

#[test]
fn every_number_of_16_bits_passes_unchanged() {
    all_pass(Bf16, &BF16);
    all_pass(F16, &F16_KIND);
}

/// Any bits at all, and sizes that gradients have.
fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        (-1.0_f32..1.0, -9..6_i32).prop_map(|(x, exponent)| x * 10.0_f32.powi(exponent)),
    ]
}

fn rounds_to_nearest(hook: impl Hook + Clone + Sync, kind: &Kind, values: &[f32]) {
    let (ours, _) = reduced(hook, &[values.to_vec()]);
    for (ours, x) in ours.iter().zip(values) {
        if !x.is_finite() {
            assert!(same(*ours, *x), "{x:e} became {ours:e}");
            continue;
        }
        let code = (kind.encode)(*ours);
        assert!(same((kind.decode)(code), *ours), "{ours:e} is no number of 16 bits");
        // Infinity stands where the next number would be.
        let place = |code: u16| match (kind.decode)(code) {
            value if value.is_finite() => f64::from(value),
            _ => 2.0 * f64::from((kind.decode)(code - 1)) - f64::from((kind.decode)(code - 2)),
        };
        let (size, size_code) = (f64::from(x.abs()), code & 0x7fff);
        let off = (size - place(size_code)).abs();
        assert!(ours.is_sign_negative() == x.is_sign_negative(), "{x:e} became {ours:e}");
        let above = (!ours.is_infinite()).then_some(size_code + 1);
        for neighbour in size_code.checked_sub(1).into_iter().chain(above) {
            let their = (size - place(neighbour)).abs();
            let is_nearest = off < their || off == their && size_code.is_multiple_of(2);
            assert!(is_nearest, "{x:e} became {ours:e}");
        }
    }
}

proptest! {
    #[test]
    fn numbers_are_rounded_to_the_nearest(values in prop::collection::vec(any_float(), 0..200)) {
        rounds_to_nearest(Bf16, &BF16, &values);
        rounds_to_nearest(F16, &F16_KIND, &values);
    }

    /// Rounded, divided in 16 bits, added as f32, rounded, multiplied: for any length and world size.
    #[test]
    fn sums_are_those_of_the_formula(
        ranks in (1..5_usize, 0..300_usize).prop_flat_map(|(world, len)| {
            prop::collection::vec(prop::collection::vec(any_float(), len), world)
        }),
    ) {
        let (world, len) = (ranks.len() as f32, ranks[0].len());
        for (kind, dtype) in [(BF16, Dtype::Bf16), (F16_KIND, Dtype::F16)] {
            let (ours, traffic) = match dtype {
                Dtype::Bf16 => reduced(Bf16, &ranks),
                _ => reduced(F16, &ranks),
            };
            prop_assert_eq!(traffic, [(dtype, len)]);
            for index in 0..len {
                let terms = ranks.iter().map(|rank| (kind.round)((kind.round)(rank[index]) / world));
                let right = (kind.round)(terms.reduce(|sum, term| sum + term).unwrap()) * world;
                prop_assert!(same(ours[index], right), "{}: {:e}, {right:e}", index, ours[index]);
            }
        }
    }
}

#[test]
fn what_is_too_large_becomes_infinite_on_every_rank_and_is_never_cut() {
    let (ours, _) = reduced(F16, &[vec![70_000.0, -1.0], vec![1.0, f32::NEG_INFINITY]]);
    assert_eq!(ours, [f32::INFINITY, f32::NEG_INFINITY]);
    let (ours, _) = reduced(F16, &[vec![65_520.0], vec![-70_000.0]]);
    assert!(ours[0].is_nan());
    let (ours, _) = reduced(Bf16, &[vec![f32::MAX, f32::NAN], vec![0.0, 0.0]]);
    assert_eq!(ours[0], f32::INFINITY);
    assert!(ours[1].is_nan());
}

#[test]
fn a_sum_may_be_larger_than_any_number_of_16_bits() {
    let (ours, _) = reduced(F16, &vec![vec![60_000.0]; 4]);
    assert_eq!(ours, [240_000.0]);
}

#[test]
fn the_plain_hook_sums_exactly_and_the_empty_one_does_nothing() {
    let ranks = [vec![1.0, 1e-8], vec![2.0, 3e-8]];
    assert_eq!(reduced(Mean, &ranks), (vec![3.0, 1e-8 + 3e-8], vec![(Dtype::F32, 2)]));
    let kept = on_ranks(2, |rank, mut comm| {
        comm.bucket.clone_from(&ranks[rank]);
        Noop.reduce(0, &[], &mut comm).unwrap();
        (comm.bucket, comm.traffic)
    });
    assert_eq!(kept, ranks.map(|rank| (rank, vec![])));
}
