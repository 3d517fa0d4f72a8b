//! Matrices of few columns, held column by column, and their products with large ones, held row by row.

use crate::hook::power_sgd::plan::Matrix;

/// One column of a thin matrix.
pub(super) type Column = [f32];

/// What a projection leaves of a column is rounding if it is less than this part of it.
const VANISHED: f64 = 1e-6;
/// A column of which this part or less is left is projected once more: what is left has been rounded as the whole
/// was, and is no longer orthogonal.
const TWICE: f64 = 0.1;

/// Makes the columns of `thin`, each of `len`, orthonormal, one after the other (Gram and Schmidt, without an epsilon).
///
/// A column that is zero, or depends on those before it, is given to `replace` with its index, which puts another one
/// there; if that is no better, it becomes zero. One that is not finite becomes undefined, as a whole or in part.
pub(super) fn orthonormalise(thin: &mut [f32], len: usize, replace: impl Fn(usize, &mut Column)) {
    for index in 0..thin.len() / len {
        let (before, rest) = thin.split_at_mut(index * len);
        let column = &mut rest[..len];
        if normalise(before, column) == Left::Nothing {
            replace(index, column);
            if normalise(before, column) == Left::Nothing {
                column.fill(0.0);
            }
        }
    }
}

/// What is left of a column once it is orthogonal to others.
#[derive(PartialEq)]
enum Left {
    Something,
    Nothing,
}

/// Makes `column` orthogonal to `others` and of length 1, if there is anything left of it.
fn normalise(others: &[f32], column: &mut Column) -> Left {
    let whole = dot_f64(column, column).sqrt();
    project(others, column);
    let mut left = dot_f64(column, column).sqrt();
    if left <= TWICE * whole && left.is_finite() {
        project(others, column);
        left = dot_f64(column, column).sqrt();
    }
    if left <= VANISHED * whole && left.is_finite() {
        return Left::Nothing;
    }
    for value in column {
        *value = (f64::from(*value) / left) as f32;
    }
    Left::Something
}

/// Takes away what lies in the direction of each of `others`.
fn project(others: &[f32], column: &mut Column) {
    for other in others.chunks_exact(column.len()) {
        let part = dot_f64(other, column) as f32;
        add_scaled(column, -part, other);
    }
}

/// `p = m q`: m is `[rows, columns]` by rows, q `[rank, columns]`, p `[rank, rows]`.
pub(super) fn product(m: &[f32], q: &[f32], columns: usize, p: &mut [f32]) {
    let rows = m.len() / columns;
    for (row, values) in m.chunks_exact(columns).enumerate() {
        for (index, q) in q.chunks_exact(columns).enumerate() {
            p[index * rows + row] = dot(values, q);
        }
    }
}

/// `q += mᵀ p`, with the shapes of [`product`].
pub(super) fn add_transposed_product(m: &[f32], p: &[f32], columns: usize, q: &mut [f32]) {
    let rows = m.len() / columns;
    for (row, values) in m.chunks_exact(columns).enumerate() {
        for (index, q) in q.chunks_exact_mut(columns).enumerate() {
            add_scaled(q, p[index * rows + row], values);
        }
    }
}

impl Matrix {
    /// `out = p qᵀ`, by rows.
    pub(super) fn expand(&self, p: &[f32], q: &[f32], out: &mut [f32]) {
        for (row, out) in out.chunks_exact_mut(self.columns).enumerate() {
            out.fill(0.0);
            for (index, q) in q.chunks_exact(self.columns).enumerate() {
                add_scaled(out, p[index * self.rows + row], q);
            }
        }
    }
}

fn add_scaled(into: &mut [f32], factor: f32, values: &[f32]) {
    for (into, value) in into.iter_mut().zip(values) {
        *into += factor * value;
    }
}

/// Sums that are kept apart, so that they can be computed at once.
const LANES: usize = 16;

fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (left, left_rest) = left.as_chunks::<LANES>();
    let (right, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left.iter().zip(right) {
        for ((lane, left), right) in lanes.iter_mut().zip(left).zip(right) {
            *lane += left * right;
        }
    }
    let rest = left_rest.iter().zip(right_rest).map(|(left, right)| left * right);
    lanes.iter().sum::<f32>() + rest.sum::<f32>()
}

/// Exact but for the rounding of the sums in f64, and never too large for it.
fn dot_f64(left: &[f32], right: &[f32]) -> f64 {
    left.iter().zip(right).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drawn(len: usize, seed: u64, spread: f32) -> Vec<f32> {
        let stream = lockstep_tensor::init::Stream::new(seed, "columns");
        (0..len as u64).map(|at| stream.normal(at) as f32 * spread).collect()
    }

    proptest! {
        /// Some columns are copies of others, but for a part as small as `apart`.
        #[test]
        fn columns_become_orthonormal_or_zero(
            len in 1..60_usize,
            count in 1..6_usize,
            seed in any::<u64>(),
            spread in prop::sample::select(vec![1e-30_f32, 1e-3, 1.0, 1e18]),
            apart in prop::sample::select(vec![0.0_f32, 1e-7, 1e-5, 1e-3]),
            copies in prop::collection::vec(any::<bool>(), 5),
        ) {
            let mut thin = drawn(len * count, seed, spread);
            for index in (1..count).filter(|index| copies[index - 1]) {
                let (before, rest) = thin.split_at_mut(index * len);
                for (value, first) in rest[..len].iter_mut().zip(before) {
                    *value = *first + *value * apart;
                }
            }
            orthonormalise(&mut thin, len, |_, column| column.fill(0.0));
            let columns: Vec<_> = thin.chunks_exact(len).collect();
            for (index, column) in columns.iter().enumerate() {
                let length = dot_f64(column, column);
                prop_assert!(length == 0.0 || (length - 1.0).abs() < 1e-5, "{index}: {length}");
                for other in &columns[..index] {
                    let part = dot_f64(other, column);
                    prop_assert!(part.abs() < 1e-5, "{index}: {part} in common");
                }
            }
            prop_assert!(dot_f64(columns[0], columns[0]) != 0.0);
        }
    }

    #[test]
    fn a_column_that_vanishes_is_replaced_and_one_that_is_undefined_is_not() {
        let mut thin = [3.0, 4.0, 6.0, 8.0];
        orthonormalise(&mut thin, 2, |index, column| {
            assert_eq!(index, 1);
            column.copy_from_slice(&[5.0, 0.0]);
        });
        let right = [0.6, 0.8, 0.8, -0.6];
        assert!(
            thin.iter().zip(right).all(|(ours, right)| (ours - right).abs() < 1e-6),
            "{thin:?}"
        );
        for bad in [f32::NAN, f32::INFINITY] {
            let mut thin = [bad, 1.0];
            orthonormalise(&mut thin, 2, |_, _| panic!("nothing vanishes"));
            assert!(thin.iter().any(|x| x.is_nan()), "{thin:?}");
        }
    }

    #[test]
    fn products_are_those_of_the_definition() {
        let (rows, columns, rank) = (5, 37, 3);
        let (m, q) = (drawn(rows * columns, 1, 1.0), drawn(rank * columns, 2, 1.0));
        let sum = |count: usize, term: &dyn Fn(usize) -> f32| -> f64 {
            (0..count).map(|at| f64::from(term(at))).sum()
        };
        let mut p = vec![9.0; rank * rows];
        product(&m, &q, columns, &mut p);
        for (at, value) in p.iter().enumerate() {
            let (index, row) = (at / rows, at % rows);
            let right = sum(columns, &|c| m[row * columns + c] * q[index * columns + c]);
            assert!((f64::from(*value) - right).abs() < 1e-5);
        }
        let mut back = vec![0.0; rank * columns];
        add_transposed_product(&m, &p, columns, &mut back);
        for (at, value) in back.iter().enumerate() {
            let (index, c) = (at / columns, at % columns);
            let right = sum(rows, &|row| m[row * columns + c] * p[index * rows + row]);
            assert!((f64::from(*value) - right).abs() < 1e-4);
        }
    }
}
