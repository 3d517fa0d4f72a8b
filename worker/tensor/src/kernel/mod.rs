//! Loops that several operations share. Orders of summation are fixed here.

#[cfg_attr(not(test), expect(dead_code, unused_imports, reason = "for operations to come"))]
pub(crate) mod conv;
#[cfg_attr(not(test), expect(dead_code, unused_imports, reason = "for operations to come"))]
pub(crate) mod gemm;
#[cfg_attr(not(test), expect(dead_code, reason = "for operations to come"))]
pub(crate) mod isa;
#[cfg_attr(not(test), expect(dead_code, reason = "for operations to come"))]
pub(crate) mod threads;

pub(crate) use gemm::Element;
pub(crate) use gemm::{Matrix, product};

use crate::real::Real;

/// Whether a kernel overwrites its destination or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    Set,
    Add,
}

/// Writes `value(i)` for each element.
pub(crate) fn write<T: Real>(dst: &mut [T], mode: Write, value: impl Fn(usize) -> T) {
    match mode {
        Write::Set => dst.iter_mut().enumerate().for_each(|(i, d)| *d = value(i)),
        Write::Add => dst.iter_mut().enumerate().for_each(|(i, d)| *d += value(i)),
    }
}

/// Sums `value(0..len)` in `f64`: element i goes to partial sum i mod 8, and these are added in pairs.
///
/// # Determinism
/// The order depends on the length alone.
pub(crate) fn sum<T: Real>(len: usize, value: impl Fn(usize) -> T) -> T {
    const LANES: usize = 8;
    let mut lanes = [0.0_f64; LANES];
    let whole = len - len % LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, partial) in lanes.iter_mut().enumerate() {
            *partial += value(start + lane).to_f64();
        }
    }
    for i in whole..len {
        lanes[i - whole] += value(i).to_f64();
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    T::from_f64(((a + e) + (c + g)) + ((b + f) + (d + h)))
}

/// Sums a `[rows, columns]` matrix over its rows, from the first to the last.
pub(crate) fn sum_rows<T: Real>(
    dst: &mut [T],
    mode: Write,
    rows: usize,
    value: impl Fn(usize) -> T,
) {
    let columns = dst.len();
    if rows == 0 && mode == Write::Set {
        dst.fill(T::ZERO);
    }
    for row in 0..rows {
        let mode = if row == 0 { mode } else { Write::Add };
        write(dst, mode, |column| value(row * columns + column));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_where_the_partial_sums_are() {
        for len in 0..40 {
            assert_eq!(sum(len, |i| i as f32), (0..len).sum::<usize>() as f32);
        }
    }

    #[test]
    fn rows_are_added_up_or_overwritten() {
        let mut dst = [10.0_f32, 10.0];
        sum_rows(&mut dst, Write::Add, 3, |i| i as f32);
        assert_eq!(dst, [16.0, 19.0]);
        sum_rows(&mut dst, Write::Set, 3, |i| i as f32);
        assert_eq!(dst, [6.0, 9.0]);
        sum_rows(&mut dst, Write::Set, 0, |i| i as f32);
        assert_eq!(dst, [0.0, 0.0]);
    }
}
