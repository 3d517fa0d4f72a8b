//! How fast the products are, beside the `gemm` crate:
//! `cargo test --release -p lockstep-tensor --lib products_in_figures -- --ignored --nocapture`.
#![expect(unsafe_code, reason = "the crate to compare with takes pointers")]

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// How the operands lie: x·W, x·Wᵀ or xᵀ·W, all row-major.
#[derive(Debug, Clone, Copy)]
enum Lie {
    Nn,
    Nt,
    Tn,
}

const CASES: [(&str, [usize; 3], Lie); 19] = [
    ("1024^3", [1024, 1024, 1024], Lie::Nn),
    ("512^3", [512, 512, 512], Lie::Nn),
    ("512^3", [512, 512, 512], Lie::Nt),
    ("MLP forward", [128, 1024, 784], Lie::Nt),
    ("MLP dx", [128, 1024, 1024], Lie::Nn),
    ("MLP dW", [1024, 1024, 128], Lie::Tn),
    ("batch 8 forward", [8, 1024, 1024], Lie::Nt),
    ("batch 8 dx", [8, 1024, 1024], Lie::Nn),
    ("batch 8 dW", [1024, 1024, 8], Lie::Tn),
    ("logits forward", [128, 10, 1024], Lie::Nt),
    ("logits dx", [128, 1024, 10], Lie::Nn),
    ("logits dW", [10, 1024, 128], Lie::Tn),
    ("GPT fc forward", [1024, 1024, 256], Lie::Nt),
    ("GPT fc dx", [1024, 256, 1024], Lie::Nn),
    ("GPT fc dW", [1024, 256, 1024], Lie::Tn),
    ("conv forward", [64, 784, 288], Lie::Nn),
    ("conv dW", [64, 288, 784], Lie::Nt),
    ("attention QK^T", [128, 128, 64], Lie::Nt),
    ("attention PV", [128, 64, 128], Lie::Nn),
];

const ROUNDS: usize = 15;

/// The thread's own seconds: other work on the machine is not counted.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[test]
#[ignore = "figures, not a check"]
fn products_in_figures() {
    println!("multiply-adds in registers: {:.0} GF/s", peak());
    println!("{:16} {:>14} lie  {:>6} {:>6} {:>6}  GF/s", "", "m x n x k", "ours", "avx2", "gemm");
    for (name, shape, lie) in CASES {
        let [ours, avx2, theirs] = figures(shape, lie);
        let shape = shape.map(|len| len.to_string()).join("x");
        let ratio = ours / theirs;
        println!("{name:16} {shape:>14} {lie:?}   {ours:6.1} {avx2:6.1} {theirs:6.1} {ratio:5.2}");
    }
}

/// Billions of operations a second, least time of several rounds in turn.
fn figures([m, n, k]: [usize; 3], lie: Lie) -> [f64; 3] {
    let fill = |len: usize| (0..len).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let (a, b, mut c) = (fill(m * k), fill(k * n), vec![0.0; m * n]);
    let (a, b) = match lie {
        Lie::Nn => (Matrix::new(&a, m, k), Matrix::new(&b, k, n)),
        Lie::Nt => (Matrix::new(&a, m, k), Matrix::new(&b, n, k).transposed()),
        Lie::Tn => (Matrix::new(&a, k, m).transposed(), Matrix::new(&b, k, n)),
    };
    let mut scratch = Scratch::new();
    let operations = 2.0 * (m * n * k) as f64;
    let calls = (2e7 / operations).ceil() as usize;
    let mut best = [f64::INFINITY; 3];
    for _ in 0..ROUNDS {
        for (which, best) in best.iter_mut().enumerate() {
            let start = now();
            for _ in 0..calls {
                let c = black_box(&mut c[..]);
                match [isa(), Isa::Avx2].get(which) {
                    Some(&isa) => {
                        let dst = MatrixMut::new(c, m, n);
                        Product::new(a, b).on(isa).run(dst, &Threads::single(), &mut scratch);
                    }
                    None => theirs(c, a, b),
                }
            }
            *best = best.min((now() - start) / calls as f64);
        }
    }
    best.map(|seconds| operations / seconds / 1e9)
}

fn theirs(c: &mut [f32], a: Matrix<'_, f32>, b: Matrix<'_, f32>) {
    // SAFETY: the matrices are what their strides say; `c` has the result's length.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            c.as_mut_ptr(),
            1,
            b.columns as isize,
            false,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// What a tile of full height reaches on operands that never leave the first-level cache.
fn peak() -> f64 {
    let kernels = <f32 as Element>::kernels(isa());
    let depth = 128;
    let (a, b) = (vec![1.0; kernels.rows * depth], vec![1.0; kernels.columns * depth]);
    let mut c = vec![0.0; kernels.rows * kernels.columns];
    let mut best = f64::INFINITY;
    for _ in 0..50 {
        let start = now();
        for _ in 0..500 {
            let tile = tile::Tile {
                depth,
                a: a.as_ptr(),
                a_stride: None,
                b: b.as_ptr(),
                b_step: kernels.columns,
                c: black_box(c.as_mut_ptr()),
                c_step: kernels.columns,
                rows: kernels.rows,
                columns: kernels.columns,
                mode: Write::Set,
                finish: tile::Finish::NONE,
            };
            // SAFETY: operands and result have the sizes that the tile says.
            unsafe { (kernels.tile)(&tile) };
        }
        best = best.min((now() - start) / 500.0);
    }
    2.0 * (kernels.rows * kernels.columns * depth) as f64 / best / 1e9
}
