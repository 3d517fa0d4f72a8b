//! What training allocates: nothing from the third step on, and less with activation checkpointing.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod training;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use lockstep_tensor::Threads;
use training::{MODELS, Training};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Allocated and not freed; what other threads free of it is not seen.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with counts for each thread.
struct Counting;

fn count(allocations: usize, bytes: isize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
    BYTES.set(BYTES.get() + bytes);
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as isize - layout.size() as isize);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_from_the_third_step_on() {
    for (name, checkpointing) in MODELS.iter().flat_map(|name| [(name, false), (name, true)]) {
        let mut training = Training::new(name, Threads::single(), checkpointing);
        for _ in 0..2 {
            training.step();
        }
        for step in 3..=6 {
            let before = ALLOCATIONS.get();
            training.step();
            let made = ALLOCATIONS.get() - before;
            assert_eq!(made, 0, "{name}, checkpointing {checkpointing}, step {step}");
        }
    }
}

/// What the first two steps allocate and keep.
fn kept(name: &str, checkpointing: bool) -> isize {
    let mut training = Training::new(name, Threads::single(), checkpointing);
    // Packing memory belongs to the thread: it is there before.
    training.step();
    let mut training = Training::new(name, Threads::single(), checkpointing);
    let before = BYTES.get();
    training.step();
    training.step();
    BYTES.get() - before
}

#[test]
fn checkpointing_needs_less_memory() {
    for name in ["resnet18", "gpt2", "bert"] {
        let (plain, checkpointed) = (kept(name, false), kept(name, true));
        assert!(4 * checkpointed < 3 * plain, "{name}: {checkpointed} of {plain} bytes");
    }
}
