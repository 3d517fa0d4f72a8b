//! What changes no bit of a result: the number of threads, and activation checkpointing.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod training;

use lockstep_tensor::Threads;
use training::{MODELS, Training};

/// The losses of three steps, the last one's gradients, and the weights after it.
fn three_steps(name: &str, threads: usize, checkpointing: bool) -> [Vec<u32>; 3] {
    let mut training = Training::new(name, Threads::new(threads).unwrap(), checkpointing);
    let losses = [(); 3].map(|()| training.step());
    assert!(losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?}");
    [&losses, training.gradients.values(), &training.weights]
        .map(|values| values.iter().map(|x| x.to_bits()).collect())
}

#[test]
fn results_are_the_same_on_one_two_and_four_threads() {
    for name in MODELS {
        let one = three_steps(name, 1, false);
        for threads in [2, 4] {
            assert!(three_steps(name, threads, false) == one, "{name} on {threads} threads");
        }
    }
}

#[test]
fn recomputed_blocks_lead_to_the_same_gradients() {
    for name in MODELS {
        let plain = three_steps(name, 1, false);
        assert!(three_steps(name, 1, true) == plain, "{name}");
    }
}
