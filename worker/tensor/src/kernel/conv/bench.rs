//! How fast convolutions are:
//! `cargo test --release -p lockstep-tensor --lib convolutions_in_figures -- --ignored --nocapture`.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// Batch, channels in and out, height and width, kernel, stride; padding keeps the size at stride 1.
const CASES: [[usize; 6]; 12] = [
    [128, 32, 64, 28, 3, 1],
    [32, 64, 64, 32, 3, 1],
    [32, 256, 256, 8, 3, 1],
    [128, 1, 32, 28, 3, 1],
    // The rest of a ResNet-18 for images of 32 x 32.
    [32, 3, 64, 32, 3, 1],
    [32, 64, 128, 32, 3, 2],
    [32, 64, 128, 32, 1, 2],
    [32, 128, 128, 16, 3, 1],
    [32, 128, 256, 16, 3, 2],
    [32, 256, 512, 8, 3, 2],
    [32, 256, 512, 8, 1, 2],
    [32, 512, 512, 4, 3, 1],
];

const ROUNDS: usize = 7;

/// The thread's own seconds: other work on the machine is not counted.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[test]
#[ignore = "figures, not a check"]
fn convolutions_in_figures() {
    println!("{:30} {:>16} {:>16} {:>16}  ms (GF/s)", "", "forward", "of input", "of weight");
    for [batch, ins, outs, len, kernel, stride] in CASES {
        let shape = ConvShape {
            batch,
            in_channels: ins,
            in_height: len,
            in_width: len,
            out_channels: outs,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [kernel / 2; 2],
            dilation: [1; 2],
            groups: 1,
        };
        let name = format!("N{batch} {ins}-{outs} {len}x{len} k{kernel} s{stride}");
        let operations = 2.0 * (shape.out_len() * ins * kernel * kernel) as f64;
        let figures = figures(&shape)
            .map(|seconds| format!("{:8.2} ({:5.1})", seconds * 1e3, operations / seconds / 1e9));
        println!("{name:30} {}", figures.join(" "));
    }
}

/// Least seconds of several rounds.
fn figures(shape: &ConvShape) -> [f64; 3] {
    let fill = |len: usize| (0..len).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let (x, w, g) = (fill(shape.in_len()), fill(shape.weight_len()), fill(shape.out_len()));
    let (mut y, mut dx, mut dw) = (g.clone(), x.clone(), w.clone());
    let (threads, mut scratch) = (Threads::single(), Scratch::new());
    let mut best = [f64::INFINITY; 3];
    for _ in 0..ROUNDS {
        for (which, best) in best.iter_mut().enumerate() {
            let with = With::new(&threads, &mut scratch);
            let start = now();
            match which {
                0 => forward(shape, black_box(&x), &w, &mut y, Epilogue::NONE, with),
                1 => gradient_of_input(shape, black_box(&g), &w, &mut dx, Write::Set, with),
                _ => gradient_of_weight(shape, black_box(&x), &g, &mut dw, Write::Set, with),
            }
            *best = best.min(now() - start);
        }
    }
    best
}
