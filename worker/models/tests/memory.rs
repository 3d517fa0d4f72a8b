//! The estimate of memory against what a step really asks for, and that a step in its stride asks for nothing.
//!
//! One test in a process of its own: the allocator counts for all threads.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]
#![expect(unsafe_code, reason = "an allocator that counts hands the requests on to the system's")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use common::Run;
use lockstep_api::{ModelSpec, Precision};
use lockstep_models::{Mode, Model};
use lockstep_tensor::{Accumulate, DType, GradBuffer, Value};
use serde_json::json;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every request goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: as this function's caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as this function's caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Case {
    spec: ModelSpec,
    samples: usize,
    checkpointing: bool,
}

struct Batch {
    name: &'static str,
    shape: Vec<usize>,
    floats: Vec<f32>,
    ints: Vec<i64>,
}

/// A forward and a backward pass; the allocations of forward.
fn step(run: &mut Run<f32>, batch: &[Batch], mode: Mode, grads: &mut GradBuffer<f32>) -> usize {
    run.tape.clear();
    let mut statistics = vec![0.0; run.buffers.len()];
    let before = COUNT.load(Relaxed);
    let mut inputs: [(&str, Option<Value>); 4] = [("", None); 4];
    for (to, input) in inputs.iter_mut().zip(batch) {
        let value = match input.floats.is_empty() {
            false => run.tape.input(&input.shape, &input.floats).unwrap(),
            true => run.tape.index(&input.shape, &input.ints).unwrap(),
        };
        *to = (input.name, Some(value));
    }
    let fallback = inputs[0].1.unwrap();
    let inputs = inputs.map(|(name, value)| (name, value.unwrap_or(fallback)));
    let Run { model, weights, buffers, tape, workspace } = run;
    let logits = model.forward(tape, &inputs, weights, buffers, mode, workspace).unwrap();
    model.batch_statistics(workspace, &mut statistics);
    model.update_buffers(buffers, &statistics);
    let count = COUNT.load(Relaxed) - before;
    let seed = vec![1e-3; tape.meta(logits).unwrap().len()];
    grads.forget_order();
    tape.backward(&[(logits, &seed)], weights, Accumulate::Overwrite, grads).unwrap();
    count
}

fn cases() -> Vec<Case> {
    let gpt2 = json!({ "arch": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 64, "n_layer": 4, "n_head": 4 });
    let dropped = json!({ "arch": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 64, "n_layer": 4, "n_head": 4,
        "attn_pdrop": 0.1, "resid_pdrop": 0.1 });
    let bert = json!({ "arch": "bert", "vocab_size": 512, "max_position_embeddings": 64, "hidden_size": 64,
        "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256, "classes": 3 });
    let vit = json!({ "arch": "vit", "image_size": 32, "patch_size": 4, "hidden_dim": 64, "num_layers": 4,
        "num_heads": 4, "mlp_dim": 256, "classes": 10 });
    let resnet =
        json!({ "arch": "resnet18", "stem": "small", "input": [3, 16, 16], "classes": 10 });
    let mlp = json!({ "arch": "mlp", "inputs": 100, "hidden": [300, 300], "classes": 10, "activation": "tanh" });
    let mut cases = Vec::new();
    for (settings, samples) in
        [(gpt2, 8), (dropped, 8), (bert, 8), (vit, 8), (resnet, 8), (mlp, 500)]
    {
        for checkpointing in [false, true] {
            let spec = common::spec(settings.clone());
            cases.push(Case { spec, samples, checkpointing });
        }
    }
    cases
}

/// Panels of packed operands, which are as long as the caches want them whatever the shapes.
const PANELS: u64 = 12 << 20;

#[test]
fn the_estimate_is_what_a_step_takes_and_a_step_in_its_stride_asks_for_nothing() {
    for case in cases() {
        // A thread of its own: what convolutions lay out is kept by the thread.
        std::thread::scope(|threads| threads.spawn(|| check(&case)).join()).unwrap();
    }
}

fn check(Case { spec, samples, checkpointing }: &Case) {
    let (samples, checkpointing) = (*samples, *checkpointing);
    let model = Model::new(spec).unwrap();
    let mode = Mode::Train { key: 1, precision: Precision::F32, checkpointing };
    let inputs = model.typical_inputs(samples);
    let estimate = model.memory_estimate(&inputs, 2, mode).unwrap();
    let parameters = 4 * model.parameter_count() as u64;
    assert_eq!((estimate.parameters, estimate.moments), (parameters, 2 * parameters));
    let batch: Vec<Batch> = inputs
        .into_iter()
        .map(|(name, meta)| {
            let is_float = meta.dtype != DType::I64;
            let floats = if is_float { vec![0.1; meta.len()] } else { Vec::new() };
            let ints = if is_float { Vec::new() } else { vec![1; meta.len()] };
            Batch { name, shape: meta.shape, floats, ints }
        })
        .collect();
    let weights = model.initial_weights(1);
    let buffers = model.initial_buffers();
    let mut grads = GradBuffer::new(std::sync::Arc::clone(model.layout()));
    let mut run = Run::<f32>::new(model, &weights, &buffers);
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    step(&mut run, &batch, mode, &mut grads);
    let taken = (PEAK.load(Relaxed) - before) as u64;
    let what = format!("{:?} {checkpointing}: {estimate}, taken {taken}", spec.arch);
    assert!(estimate.activations <= taken + taken / 50, "{what}");
    // The tape's pool keeps memory that nothing fits in at the moment.
    assert!(taken <= estimate.activations / 2 * 3 + PANELS, "{what}");
    for _ in 0..2 {
        step(&mut run, &batch, mode, &mut grads);
    }
    let asked = step(&mut run, &batch, mode, &mut grads);
    assert_eq!(asked, 0, "{what}");
}
