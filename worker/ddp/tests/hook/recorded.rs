//! Hooks against what PyTorch's left of the same gradients. Ours sum: half of that is its mean of two ranks.

use std::num::NonZeroUsize;

use lockstep_collective::{Bucket, PlanParam};
use lockstep_ddp::hook::{Bf16, F16, Hook, HookState, PowerSgd, PowerSgdConfig};

use crate::{comm::on_ranks, recording::Recording};

const WORLD: usize = 2;

/// What each rank saw.
fn ranks() -> [Recording; WORLD] {
    [
        Recording::read(include_bytes!("../golden/ddp_rank0.safetensors")),
        Recording::read(include_bytes!("../golden/ddp_rank1.safetensors")),
    ]
}

fn settings() -> serde_json::Value {
    serde_json::from_str(include_str!("../golden/ddp.json")).unwrap()
}

/// The one bucket of the recording, in its order, which is that of our arena.
fn bucket(recorded: &Recording) -> Bucket {
    let order: Vec<String> =
        serde_json::from_value(settings()["powersgd"]["bucket_order"].clone()).unwrap();
    let param = |name: String| {
        let shape = recorded.shape(&format!("hook.local_grad.{name}")).to_vec();
        PlanParam { name, shape }
    };
    let params: Vec<_> = order.into_iter().map(param).collect();
    let len = params.iter().map(|param| param.shape.iter().product::<usize>()).sum();
    Bucket { range: 0..len, params }
}

/// The bucket's floats under a prefix.
fn flat(recorded: &Recording, bucket: &Bucket, prefix: &str) -> Vec<f32> {
    let names = bucket.params.iter().map(|param| format!("{prefix}.{}", param.name));
    names.flat_map(|name| floats(recorded, &name)).collect()
}

fn floats(recorded: &Recording, name: &str) -> Vec<f32> {
    recorded.values(name).iter().map(|x| *x as f32).collect()
}

fn has_the_same_bits(hook: impl Hook + Clone + Sync, kind: &str) {
    let recorded = ranks();
    let bucket = bucket(&recorded[0]);
    let means = on_ranks(WORLD, |rank, mut comm| {
        comm.bucket = flat(&recorded[rank], &bucket, "hook.local_grad");
        hook.clone().reduce(0, &bucket.params, &mut comm).unwrap();
        comm.bucket.iter().map(|sum| (sum / WORLD as f32).to_bits()).collect::<Vec<_>>()
    });
    for (ours, recorded) in means.iter().zip(&recorded) {
        let theirs = flat(recorded, &bucket, &format!("hook.{kind}.grad"));
        assert_eq!(*ours, theirs.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    }
}

#[test]
fn sums_as_f16_are_pytorchs_bit_for_bit() {
    has_the_same_bits(F16, "fp16");
}

#[test]
fn sums_as_bf16_are_pytorchs_bit_for_bit() {
    has_the_same_bits(Bf16, "bf16");
}

/// A thin matrix by rows becomes one by columns.
fn by_columns(values: &[f32], rank: usize) -> Vec<f32> {
    (0..rank).flat_map(|index| values.iter().skip(index).step_by(rank).copied()).collect()
}

fn config() -> PowerSgdConfig {
    let recorded = &settings()["powersgd"];
    let number = |name: &str| recorded[name].as_u64().unwrap();
    PowerSgdConfig {
        rank: NonZeroUsize::new(number("matrix_approximation_rank") as usize).unwrap(),
        start_step: number("start_powerSGD_iter"),
        min_compression_rate: number("min_compression_rate") as f64,
        warm_start: true,
        error_feedback: true,
        seed: 0,
    }
}

/// Within 2e-5 of the greatest.
fn check(name: &str, ours: &[f32], theirs: &[f32]) {
    let greatest = theirs.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    assert_eq!(ours.len(), theirs.len(), "{name}");
    for (place, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let off = (ours - theirs).abs();
        assert!(off <= 2e-5 * greatest, "{name}, {place}: {ours}, {theirs}; greatest {greatest}");
    }
}

/// What the hook left of a step: the gradient, Q by columns, what is left over.
struct Step {
    sum: Vec<f32>,
    state: HookState,
}

#[test]
fn six_steps_of_power_sgd_are_pytorchs() {
    let recorded = ranks();
    let bucket = bucket(&recorded[0]);
    let config = config();
    let rank_count = config.rank.get();
    // In the order of the bucket: fc2.weight, fc1.weight.
    let first_q = [0, 1].map(|index| {
        let name = format!("powersgd.first_q_before_orthogonalisation.{index}");
        by_columns(&floats(&recorded[0], &name), rank_count)
    });
    let runs = on_ranks(WORLD, |rank, mut comm| {
        let mut hook = PowerSgd::new(config, std::slice::from_ref(&bucket));
        hook.restore(&HookState { shared: first_q.concat(), ..hook.state() }).unwrap();
        let reduce = |step| {
            let prefix = format!("powersgd.step{step}.local_grad");
            comm.bucket = flat(&recorded[rank], &bucket, &prefix);
            hook.reduce(0, &bucket.params, &mut comm).unwrap();
            Step { sum: comm.bucket.clone(), state: hook.state() }
        };
        (0..6).map(reduce).collect::<Vec<_>>()
    });
    let [weight_2, weight_1] = ["fc2.weight", "fc1.weight"].map(|name| place(&bucket, name));
    for (run, recorded) in runs.iter().zip(&recorded) {
        for (step, Step { sum, state }) in run.iter().enumerate() {
            let mean: Vec<_> = sum.iter().map(|sum| sum / WORLD as f32).collect();
            let named = |what: &str| format!("powersgd.step{step}.{what}");
            check(&named("grad"), &mean, &flat(recorded, &bucket, &named("grad")));
            if (step as u64) < config.start_step {
                continue;
            }
            let q: Vec<_> = state.shared.iter().map(|sum| sum / WORLD as f32).collect();
            let theirs = floats(recorded, &named("Q.bucket0"));
            let (q_2, q_1) = theirs.split_at(32 * rank_count);
            let theirs = [by_columns(q_2, rank_count), by_columns(q_1, rank_count)].concat();
            check(&named("Q"), &q, &theirs);
            // PyTorch's also has what plain parameters are from their mean, which adds up to nothing.
            let theirs = floats(recorded, &named("error.bucket0"));
            let theirs = [&theirs[weight_2.clone()], &theirs[weight_1.clone()]].concat();
            check(&named("error"), &state.leftovers, &theirs);
        }
    }
}

fn place(bucket: &Bucket, name: &str) -> std::ops::Range<usize> {
    let mut end = 0;
    for param in &bucket.params {
        let start = end;
        end += param.shape.iter().product::<usize>();
        if param.name == name {
            return start..end;
        }
    }
    panic!("no {name}");
}
