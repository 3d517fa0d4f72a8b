//! Products against the definition, and bits against bits.

use super::*;

mod bits;

const SHAPES: [[usize; 3]; 22] = [
    [1, 1, 1],
    [3, 5, 2],
    [8, 5, 16],
    [33, 17, 9],
    [1, 70, 70],
    [70, 1, 70],
    [14, 32, 8],
    [15, 33, 7],
    [13, 31, 40],
    [29, 65, 33],
    [6, 16, 100],
    [7, 17, 1],
    [16, 40, 65],
    [17, 40, 65],
    [40, 16, 65],
    [40, 17, 65],
    [2, 3, 513],
    [20, 35, 1030],
    [130, 70, 5],
    [200, 300, 20],
    [100, 40, 600],
    [5, 2, 1500],
];

fn numbers(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| ((i * 37 + i / 7 + salt * 11) % 17) as f64 - 8.0).collect()
}

fn cast<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|&value| T::from_f64(value)).collect()
}

/// Numbers that no order of summation adds up exactly.
fn rough(len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + salt * 104_729) as f32 * 0.618_034).sin()).collect()
}

fn transpose<T: Copy>(data: &[T], rows: usize, columns: usize) -> Vec<T> {
    (0..rows * columns).map(|i| data[i % rows * columns + i / rows]).collect()
}

/// The definition, and beside it the sum of the terms' sizes.
fn definition(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> (Vec<f64>, Vec<f64>) {
    let (mut sums, mut sizes) = (vec![0.0; m * n], vec![0.0; m * n]);
    for i in 0..m {
        for j in 0..n {
            for l in 0..k {
                let term = a[i * k + l] * b[l * n + j];
                sums[i * n + j] += term;
                sizes[i * n + j] += term.abs();
            }
        }
    }
    (sums, sizes)
}

/// A product's operands in memory, and views of them.
struct Operands<T> {
    a: Vec<T>,
    b: Vec<T>,
    at: Vec<T>,
    bt: Vec<T>,
    shape: [usize; 3],
}

impl<T: Real> Operands<T> {
    fn new(a: Vec<T>, b: Vec<T>, shape: [usize; 3]) -> Self {
        let [m, n, k] = shape;
        Self { at: transpose(&a, m, k), bt: transpose(&b, k, n), a, b, shape }
    }

    /// Every way the operands can lie.
    fn views(&self) -> [(Matrix<'_, T>, Matrix<'_, T>); 4] {
        let [m, n, k] = self.shape;
        let (a, at) = (Matrix::new(&self.a, m, k), Matrix::new(&self.at, k, m).transposed());
        let (b, bt) = (Matrix::new(&self.b, k, n), Matrix::new(&self.bt, n, k).transposed());
        [(a, b), (at, b), (a, bt), (at, bt)]
    }
}

fn run<T: Real>(product: Product<'_, T>, dst: &mut [T]) {
    let dst = MatrixMut::new(dst, product.a.rows, product.b.columns);
    product.run(dst, &Threads::single(), &mut Scratch::new());
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Small integers: every order of summation gives the same bits.
fn products_equal_the_definition<T: Real>() {
    for shape in SHAPES {
        let [m, n, k] = shape;
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let (expected, _) = definition(&a, &b, shape);
        let doubled: Vec<_> = expected.iter().map(|x| 2.0 * x).collect();
        let (expected, doubled) = (cast::<T>(&expected), cast::<T>(&doubled));
        let operands = Operands::new(cast::<T>(&a), cast(&b), shape);
        for (which, (a, b)) in operands.views().into_iter().enumerate() {
            for isa in Isa::supported() {
                let mut c = vec![T::from_f64(f64::NAN); m * n];
                run(Product::new(a, b).on(isa), &mut c);
                assert_eq!(c, expected, "{shape:?} {which} {isa:?}");
                run(Product::new(a, b).on(isa).mode(Write::Add), &mut c);
                assert_eq!(c, doubled, "{shape:?} {which} {isa:?}");
            }
        }
    }
}

#[test]
fn products_equal_the_definition_for_every_orientation_mode_and_instruction_set() {
    products_equal_the_definition::<f32>();
    products_equal_the_definition::<f64>();
}

/// Both operands and the result as parts of wider matrices, the operands with gaps along both axes.
#[test]
fn operands_and_result_may_be_parts_of_something_larger() {
    for shape in SHAPES {
        let [m, n, k] = shape;
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let (expected, _) = definition(&a, &b, shape);
        let spread = |data: &[f64], columns: usize, strides: (usize, usize)| {
            let mut wide = vec![f32::NAN; data.len() * 8 + 64];
            for (i, &value) in data.iter().enumerate() {
                wide[i / columns * strides.0 + i % columns * strides.1] = value as f32;
            }
            wide
        };
        for gap in [1, 3] {
            let (a_strides, b_strides) = ((k * gap + 1, gap), (gap, k * gap + 2));
            let (a, b) = (spread(&a, k, a_strides), spread(&b, n, b_strides));
            let a = Matrix::strided(&a, (m, k), a_strides);
            let b = Matrix::strided(&b, (k, n), b_strides);
            for isa in Isa::supported() {
                let mut c = vec![7.0; m * (n + 3)];
                let dst = MatrixMut::strided(&mut c, m, n, n + 3);
                let product = Product::new(a, b).on(isa);
                product.run(dst, &Threads::single(), &mut Scratch::new());
                for (i, &value) in c.iter().enumerate() {
                    let (row, column) = (i / (n + 3), i % (n + 3));
                    let due = if column < n { expected[row * n + column] as f32 } else { 7.0 };
                    assert_eq!(value, due, "{shape:?} {gap} {isa:?} at {row}, {column}");
                }
            }
        }
    }
}

/// Higham, "Accuracy and Stability of Numerical Algorithms", 3.1: |error| ≤ k·eps·Σ|a||b| in any order, to first order.
#[test]
fn errors_stay_within_the_bound_of_summation() {
    for shape in SHAPES {
        let [m, n, k] = shape;
        let operands = Operands::new(rough(m * k, 1), rough(k * n, 2), shape);
        let exact = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (expected, sizes) = definition(&exact(&operands.a), &exact(&operands.b), shape);
        for (a, b) in operands.views() {
            for isa in Isa::supported() {
                let mut c = vec![0.0_f32; m * n];
                run(Product::new(a, b).on(isa), &mut c);
                for ((c, expected), size) in c.iter().zip(&expected).zip(&sizes) {
                    let bound = (k + 1) as f64 * f64::from(f32::EPSILON) / 2.0 * size * 1.01;
                    let error = (f64::from(*c) - expected).abs();
                    assert!(error <= bound, "{shape:?} {isa:?}: {error:e} over {bound:e}");
                }
            }
        }
    }
}

#[test]
fn the_epilogue_comes_after_the_whole_sum_in_its_order() {
    for shape in SHAPES {
        let [m, n, k] = shape;
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let (expected, _) = definition(&a, &b, shape);
        let operands = Operands::new(cast::<f32>(&a), cast(&b), shape);
        let (per_column, per_row) = (cast::<f32>(&numbers(n, 4)), cast::<f32>(&numbers(m, 5)));
        let cases = [
            (Bias::None, Activation::Relu),
            (Bias::PerColumn(&per_column[..]), Activation::Identity),
            (Bias::PerRow(&per_row), Activation::Relu),
        ];
        for (bias, activation) in cases {
            let due = |i: usize| {
                let value = expected[i] as f32
                    + 1.0
                    + match bias {
                        Bias::None => 0.0,
                        Bias::PerColumn(bias) => bias[i % n],
                        Bias::PerRow(bias) => bias[i / n],
                    };
                match activation {
                    Activation::Identity => value,
                    Activation::Relu => value.max(0.0),
                }
            };
            let due: Vec<_> = (0..m * n).map(due).collect();
            for (a, b) in operands.views() {
                let mut c = vec![1.0; m * n];
                let product = Product::new(a, b).mode(Write::Add);
                run(product.then(Epilogue { bias, activation }), &mut c);
                assert_eq!(c, due, "{shape:?} {bias:?} {activation:?}");
            }
        }
    }
}

#[test]
fn relu_lets_nan_through() {
    let (a, b) = ([f32::NAN, -1.0], [1.0]);
    let mut c = [0.0; 2];
    let epilogue = Epilogue { bias: Bias::None, activation: Activation::Relu };
    let product = Product::new(Matrix::new(&a, 2, 1), Matrix::new(&b, 1, 1)).then(epilogue);
    run(product, &mut c);
    assert!(c[0].is_nan() && c[1] == 0.0);
}

#[test]
fn an_empty_inner_axis_gives_zeros_and_empty_results_nothing() {
    let mut c = [f32::NAN; 6];
    product(&mut c, Write::Set, Matrix::new(&[], 2, 0), Matrix::new(&[], 0, 3));
    assert_eq!(c, [0.0; 6]);
    product(
        &mut [] as &mut [f32],
        Write::Set,
        Matrix::new(&[], 0, 2),
        Matrix::new(&[1.0; 6], 2, 3),
    );
    product(
        &mut [] as &mut [f32],
        Write::Add,
        Matrix::new(&[1.0; 4], 2, 2),
        Matrix::new(&[], 2, 0),
    );
}

#[test]
fn scratch_is_not_allocated_again() {
    let (a, b) = (rough(100 * 600, 1), rough(600 * 300, 2));
    let mut scratch = Scratch::new();
    let mut size = 0;
    for _ in 0..3 {
        let mut c = vec![0.0; 100 * 300];
        let product = Product::new(Matrix::new(&a, 100, 600), Matrix::new(&b, 600, 300));
        product.run(MatrixMut::new(&mut c, 100, 300), &Threads::single(), &mut scratch);
        let now = scratch.bytes();
        assert!(0 < now && (size == 0 || size == now), "{size} then {now}");
        size = now;
    }
}
