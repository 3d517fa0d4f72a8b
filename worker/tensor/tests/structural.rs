//! Products, windows, axes and places against their definitions, place by place.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, Axes, Clamp, GradBuffer, Half, Layout, Op, OpError, Pool2d, Real, ScatterAdd,
    Slice, Tape, init::Stream,
};

fn numbers(shape: &[usize]) -> Vec<f64> {
    let stream = Stream::new(7, "numbers");
    let len: usize = shape.iter().product();
    (0..len as u64).map(|i| 4.0 * stream.fraction(i) - 2.0).collect()
}

fn tape<T: Real>() -> Tape<T> {
    Tape::new(Arc::new(Layout::new(Vec::new()).unwrap()))
}

/// The result of an operation on floats.
fn compute<T: Real>(op: Op, inputs: &[(&[usize], &[T])]) -> Vec<T> {
    let mut tape = tape();
    let inputs: Vec<_> =
        inputs.iter().map(|(shape, data)| tape.input(shape, data).unwrap()).collect();
    let y = tape.apply(op, &inputs, &[]).unwrap();
    tape.values(y).unwrap().to_vec()
}

/// The gradient of the one input, given that of the output.
fn gradient(op: Op, shape: &[usize], x: &[f64], seed: &[f64]) -> Vec<f64> {
    let layout = Arc::new(Layout::new(vec![("x".to_owned(), shape.to_vec())]).unwrap());
    let mut tape = Tape::new(Arc::clone(&layout));
    let input = tape.param(layout.id("x").unwrap());
    let y = tape.apply(op, &[input], x).unwrap();
    let mut gradients = GradBuffer::new(layout);
    tape.backward(&[(y, seed)], x, Accumulate::Overwrite, &mut gradients).unwrap();
    gradients.values().to_vec()
}

/// The coordinates of place `i`.
fn coordinates(shape: &[usize], mut i: usize) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (at, length) in at.iter_mut().zip(shape).rev() {
        *at = i % length;
        i /= length;
    }
    at
}

fn place(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |place, (length, at)| place * length + at)
}

fn assert_near(a: &[f64], b: &[f64], label: &str) {
    assert_eq!(a.len(), b.len(), "{label}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-12, "{label}: {a} {b}");
    }
}

#[test]
fn products_are_made_for_each_of_the_leading_axes() {
    let [p, q, n, k, m] = [2, 3, 4, 5, 6];
    for b_shape in [vec![p, q, k, m], vec![k, m]] {
        let a_shape = [p, q, n, k];
        let (a, b) = (numbers(&a_shape), numbers(&b_shape));
        let y = compute(Op::MatMul, &[(&a_shape, &a), (&b_shape, &b)]);
        let expected: Vec<_> = (0..p * q * n * m)
            .map(|i| {
                let at = coordinates(&[p, q, n, m], i);
                let b_at = |l: usize| match b_shape.len() {
                    2 => place(&b_shape, &[l, at[3]]),
                    _ => place(&b_shape, &[at[0], at[1], l, at[3]]),
                };
                (0..k).map(|l| a[place(&a_shape, &[at[0], at[1], at[2], l])] * b[b_at(l)]).sum()
            })
            .collect();
        assert_near(&y, &expected, "matmul");
    }
}

/// The elements of window (i, j), `None` for the padding, by the definition on one plane.
fn window(x: &[f64], [h, w]: [usize; 2], pool: &Pool2d, i: usize, j: usize) -> Vec<Option<f64>> {
    let mut window = Vec::new();
    for down in 0..pool.kernel[0] {
        for across in 0..pool.kernel[1] {
            let row = (i * pool.stride[0] + down).checked_sub(pool.padding[0]);
            let column = (j * pool.stride[1] + across).checked_sub(pool.padding[1]);
            let inside = row.zip(column).filter(|&(row, column)| row < h && column < w);
            window.push(inside.map(|(row, column)| x[row * w + column]));
        }
    }
    window
}

#[test]
fn windows_are_where_their_definition_puts_them() {
    for (kernel, stride, padding) in [
        ([2, 2], [2, 2], [0, 0]),
        ([3, 3], [2, 2], [1, 1]),
        ([3, 2], [1, 2], [1, 0]),
        ([2, 5], [3, 1], [1, 2]),
        ([7, 8], [1, 1], [0, 0]),
    ] {
        let (pool, h, w) = (Pool2d { kernel, stride, padding }, 7, 8);
        let shape = [2, 3, h, w];
        let x = numbers(&shape);
        let [down, across] =
            [(0, h), (1, w)].map(|(i, l)| (l + 2 * padding[i] - kernel[i]) / stride[i] + 1);
        let (mut greatest, mut means) = (Vec::new(), Vec::new());
        for plane in x.chunks(h * w) {
            for (i, j) in (0..down).flat_map(|i| (0..across).map(move |j| (i, j))) {
                let window = window(plane, [h, w], &pool, i, j);
                greatest.push(window.iter().flatten().copied().fold(f64::MIN, f64::max));
                means.push(window.iter().flatten().sum::<f64>() / window.len() as f64);
            }
        }
        let label = format!("{pool:?}");
        assert_near(&compute(Op::MaxPool2d(pool), &[(&shape, &x)]), &greatest, &label);
        assert_near(&compute(Op::AvgPool2d(pool), &[(&shape, &x)]), &means, &label);
    }
}

#[test]
fn adaptive_windows_cover_everything_and_may_share_elements() {
    let x = [1.0, 2.0, 4.0, 8.0, 16.0];
    let mean = |counts: [usize; 2], shape: [usize; 4]| {
        compute(Op::AdaptiveAvgPool2d(counts), &[(&shape, &x)])
    };
    let of_three = [1.5, 14.0 / 3.0, 12.0];
    assert_near(&mean([1, 3], [1, 1, 1, 5]), &of_three, "across");
    assert_near(&mean([3, 1], [1, 1, 5, 1]), &of_three, "down");
    assert_near(&mean([1, 1], [1, 1, 1, 5]), &[6.2], "all");
    assert_near(&mean([1, 5], [1, 1, 1, 5]), &x, "each");
    assert_near(&mean([1, 1], [1, 5, 1, 1]), &x, "planes");
    let of_seven = [1.0, 1.5, 3.0, 4.0, 6.0, 12.0, 16.0];
    assert_near(&mean([1, 7], [1, 1, 1, 5]), &of_seven, "more than there are");
}

#[test]
fn the_first_of_equals_receives_the_gradient_and_nan_is_greatest() {
    let (one, nan) = (1.0, f64::NAN);
    let pool = Op::MaxPool2d(Pool2d { kernel: [2, 2], stride: [1, 1], padding: [0, 0] });
    // The windows overlap in the middle column.
    let x = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0];
    assert_eq!(
        gradient(pool.clone(), &[1, 1, 2, 3], &x, &[1.0, 10.0]),
        [0.0, 11.0, 0.0, 0.0, 0.0, 0.0]
    );
    let max =
        |axes: &[usize]| Op::MaxAxes(Axes { axes: axes.iter().copied().collect(), keep: false });
    assert_eq!(gradient(max(&[0]), &[2, 2], &[one; 4], &[5.0, 7.0]), [5.0, 7.0, 0.0, 0.0]);
    assert_eq!(gradient(max(&[1]), &[2, 2], &[one; 4], &[5.0, 7.0]), [5.0, 0.0, 7.0, 0.0]);
    for op in [Op::MaxPool2d(Pool2d { kernel: [1, 3], stride: [1, 1], padding: [0, 0] }), max(&[3])]
    {
        let x = [5.0, nan, 7.0];
        assert!(compute(op.clone(), &[(&[1, 1, 1, 3], &x)])[0].is_nan());
        assert_eq!(gradient(op.clone(), &[1, 1, 1, 3], &x, &[2.0]), [0.0, 2.0, 0.0]);
        let x = [f64::NEG_INFINITY; 3];
        assert_eq!(compute(op.clone(), &[(&[1, 1, 1, 3], &x)]), [f64::NEG_INFINITY]);
        assert_eq!(gradient(op, &[1, 1, 1, 3], &x, &[2.0]), [2.0, 0.0, 0.0]);
    }
}

#[test]
fn every_choice_of_axes_reduces_to_what_lies_along_them() {
    let shape = [3, 2, 4, 5, 70];
    let x = numbers(&shape);
    for chosen in 1_usize..1 << shape.len() {
        let axes: Vec<_> = (0..shape.len()).filter(|axis| chosen >> axis & 1 == 1).collect();
        let mut kept = shape;
        axes.iter().for_each(|&axis| kept[axis] = 1);
        let len = kept.iter().product();
        let (mut sums, mut greatest) = (vec![0.0; len], vec![f64::MIN; len]);
        for (i, &x) in x.iter().enumerate() {
            let mut at = coordinates(&shape, i);
            axes.iter().for_each(|&axis| at[axis] = 0);
            let place = place(&kept, &at);
            sums[place] += x;
            greatest[place] = x.max(greatest[place]);
        }
        let count = (x.len() / len) as f64;
        let means: Vec<_> = sums.iter().map(|sum| sum / count).collect();
        for keep in [false, true] {
            let axes = Axes { axes: axes.iter().rev().copied().collect(), keep };
            let label = format!("{axes:?}");
            let run = |op| compute(op, &[(&shape, &x)]);
            assert_near(&run(Op::SumAxes(axes.clone())), &sums, &label);
            assert_near(&run(Op::MeanAxes(axes.clone())), &means, &label);
            assert_near(&run(Op::MaxAxes(axes)), &greatest, &label);
        }
    }
}

/// A million small numbers after a great one: a running f32 would forget them.
#[test]
fn long_sums_of_f32_are_added_up_in_f64() {
    let len = 1 << 20;
    let mut x = vec![1.0_f32; len];
    x[0] = 16_777_216.0;
    let expected = 16_777_216.0 + (len - 1) as f64;
    for (shape, axis) in [([1, len], 1), ([len, 1], 0)] {
        let axes = Axes { axes: [axis].into_iter().collect(), keep: false };
        assert_eq!(compute(Op::SumAxes(axes), &[(&shape, &x)]), [expected as f32], "{axis}");
    }
    let mean = compute(Op::AdaptiveAvgPool2d([1, 1]), &[(&[1, 1, 1024, 1024], &x)]);
    assert_eq!(mean, [(expected / len as f64) as f32]);
}

#[test]
fn permuted_and_sliced_elements_are_where_they_should_be_of_floats_and_of_integers() {
    let shape = [2, 3, 4];
    let ints: Vec<i64> = (0..24).collect();
    let floats: Vec<f64> = ints.iter().map(|&i| i as f64).collect();
    let mut ops = Vec::new();
    for axes in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let expected: Vec<_> = (0..24)
            .map(|i| {
                let at = coordinates(&axes.map(|axis| shape[axis]), i);
                let mut from = [0; 3];
                axes.iter().zip(at).for_each(|(&axis, at)| from[axis] = at);
                place(&shape, &from) as i64
            })
            .collect();
        ops.push((Op::Permute(axes.into_iter().collect()), expected));
    }
    for (axis, length) in shape.into_iter().enumerate() {
        for (start, len) in (0..length).flat_map(|s| (0..=length - s).map(move |l| (s, l))) {
            let inside = |i: &i64| {
                let at = coordinates(&shape, *i as usize)[axis];
                start <= at && at < start + len
            };
            let expected = ints.iter().copied().filter(inside).collect();
            ops.push((Op::Slice(Slice { axis, start, len }), expected));
        }
    }
    for (op, expected) in ops {
        let mut tape = tape::<f64>();
        let x = tape.index(&shape, &ints).unwrap();
        let y = tape.apply(op.clone(), &[x], &[]).unwrap();
        assert_eq!(tape.indices(y).unwrap(), expected, "{op:?}");
        let expected: Vec<_> = expected.iter().map(|&i| i as f64).collect();
        assert_eq!(compute(op.clone(), &[(&shape, &floats)]), expected, "{op:?}");
    }
}

#[test]
fn joined_slices_are_the_whole() {
    let shape = [3, 5, 2];
    let x: Vec<i64> = (0..30).collect();
    for (axis, length) in shape.into_iter().enumerate() {
        let mut tape = tape::<f32>();
        let whole = tape.index(&shape, &x).unwrap();
        let cuts = [0, 1, 1, length];
        let parts: Vec<_> = cuts
            .windows(2)
            .map(|cut| {
                let slice = Slice { axis, start: cut[0], len: cut[1] - cut[0] };
                tape.apply(Op::Slice(slice), &[whole], &[]).unwrap()
            })
            .collect();
        let joined = tape.apply(Op::Concat(axis), &parts, &[]).unwrap();
        assert_eq!(tape.indices(joined).unwrap(), x, "{axis}");
    }
}

#[test]
fn gathered_and_scattered_elements_go_where_the_index_says() {
    let (shape, x) = ([2, 3, 4], numbers(&[2, 3, 4]));
    for (axis, length) in shape.into_iter().enumerate() {
        // Shorter than x along the other axes, longer along this one.
        let mut index_shape = shape.map(|length| length - 1);
        index_shape[axis] = 5;
        let len = index_shape.iter().product();
        let index: Vec<_> = (0..len).map(|i| (i * 7 % 11 % length) as i64).collect();
        let mut tape = tape::<f64>();
        let input = tape.input(&shape, &x).unwrap();
        let by = tape.index(&index_shape, &index).unwrap();
        let y = tape.apply(Op::GatherAxis(axis), &[input, by], &[]).unwrap();
        for (i, &y) in tape.values(y).unwrap().iter().enumerate() {
            let mut at = coordinates(&index_shape, i);
            at[axis] = index[i] as usize;
            assert_eq!(y, x[place(&shape, &at)], "{axis} {i}");
        }

        let index: Vec<_> = (0..24).map(|i| i * 7 % 11 % 6).collect();
        let mut sum_shape = shape;
        sum_shape[axis] = 6;
        let mut sums = vec![0.0; sum_shape.iter().product()];
        for (i, x) in x.iter().enumerate() {
            let mut at = coordinates(&shape, i);
            at[axis] = index[i] as usize;
            sums[place(&sum_shape, &at)] += x;
        }
        let by = tape.index(&shape, &index).unwrap();
        let y = tape.apply(Op::ScatterAdd(ScatterAdd { axis, len: 6 }), &[input, by], &[]).unwrap();
        assert_eq!(tape.values(y).unwrap(), sums, "{axis}");
    }
}

#[test]
fn indices_out_of_range_are_refused_and_the_tape_can_be_used_on() {
    for wrong in [-1, 3, i64::MIN, i64::MAX] {
        let mut tape = tape::<f32>();
        let x = tape.input(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let tall = tape.input(&[3, 2], &[1.0; 6]).unwrap();
        let index = tape.index(&[2, 2], &[0, 1, wrong, 1]).unwrap();
        let refused = |op| OpError::IndexOutOfRange { op, row: 2, index: wrong, len: 3 };
        let gathered = tape.apply(Op::GatherAxis(0), &[tall, index], &[]);
        assert_eq!(gathered, Err(refused("gather_axis")));
        let scatter = Op::ScatterAdd(ScatterAdd { axis: 1, len: 3 });
        assert_eq!(tape.apply(scatter, &[x, index], &[]), Err(refused("scatter_add")));
        let y = tape.apply(Op::Abs, &[x], &[]).unwrap();
        assert_eq!(tape.values(y).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn where_takes_the_first_for_any_number_but_0() {
    let mut tape = tape::<f32>();
    let condition = tape.index(&[4], &[0, 1, -5, 0]).unwrap();
    let a = tape.input(&[4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let b = tape.input(&[4], &[5.0, 6.0, f32::NAN, 8.0]).unwrap();
    let y = tape.apply(Op::Where, &[condition, a, b], &[]).unwrap();
    assert_eq!(tape.values(y).unwrap(), [5.0, 2.0, 3.0, 8.0]);
}

#[test]
fn functions_of_f32_are_near_those_of_f64() {
    type Exact = fn(f64) -> f64;
    let functions: [(Op, Exact); 9] = [
        (Op::AddScalar(0.5), |x| x + 0.5),
        (Op::Abs, f64::abs),
        (Op::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Op::Silu, |x| x / (1.0 + (-x).exp())),
        (Op::Tanh, f64::tanh),
        (Op::Pow(2.0), |x| x * x),
        (Op::Pow(3.0), |x| x * x * x),
        (Op::Pow(-1.0), |x| 1.0 / x),
        (Op::Pow(-2.0), |x| 1.0 / (x * x)),
    ];
    let x: Vec<f32> = (-300..300).map(|i| (i as f32 + 0.5) / 25.0).collect();
    for (op, exact) in functions {
        for (&x, y) in x.iter().zip(compute(op.clone(), &[(&[600], &x)])) {
            let exact = exact(f64::from(x));
            let gap = (f64::from(y) - exact).abs() / (1e-3 + exact.abs());
            assert!(gap < 1e-6, "{op:?} of {x}: {y} {exact}");
        }
    }
    let roots = compute(Op::Sqrt, &[(&[3], &[0.0_f32, 2.0, 9.0])]);
    assert_eq!(roots, [0.0, 2.0_f32.sqrt(), 3.0]);
}

#[test]
fn functions_run_out_where_they_should_and_keep_nan() {
    let x = [f32::NEG_INFINITY, -200.0, 200.0, f32::INFINITY];
    let run = |op: Op| compute(op, &[(&[4], &x)]);
    assert_eq!(run(Op::Sigmoid), [0.0, 0.0, 1.0, 1.0]);
    assert_eq!(run(Op::Tanh), [-1.0, -1.0, 1.0, 1.0]);
    assert_eq!(run(Op::Silu)[1..3], [0.0, 200.0]);
    assert_eq!(run(Op::Clamp(Clamp { min: -1.0, max: 2.0 })), [-1.0, -1.0, 2.0, 2.0]);
    for op in [
        Op::AddScalar(1.0),
        Op::Sqrt,
        Op::Abs,
        Op::Pow(2.5),
        Op::Clamp(Clamp { min: -1.0, max: 1.0 }),
        Op::Sigmoid,
        Op::Tanh,
        Op::Silu,
        Op::Gelu,
        Op::GeluTanh,
        Op::Cast(Half::F16),
        Op::Cast(Half::Bf16),
    ] {
        assert!(compute(op.clone(), &[(&[1], &[f32::NAN])])[0].is_nan(), "{op:?}");
    }
}

/// At their kinks: 0 for |x|, the bounds of a clamp, and a flat power.
#[test]
fn derivatives_at_kinks_are_the_documented_ones() {
    let x = [-1.0, 0.0, 0.5, 1.0, 2.0];
    let run = |op| gradient(op, &[5], &x, &[3.0; 5]);
    assert_eq!(run(Op::Abs), [-3.0, 0.0, 3.0, 3.0, 3.0]);
    assert_eq!(run(Op::Clamp(Clamp { min: 0.0, max: 1.0 })), [0.0, 3.0, 3.0, 3.0, 0.0]);
    assert_eq!(run(Op::Pow(0.0)), [0.0; 5]);
    assert_eq!(run(Op::Pow(1.0)), [3.0; 5]);
    assert_eq!(run(Op::Pow(2.0)), [-6.0, 0.0, 3.0, 6.0, 12.0]);
}

#[test]
fn a_cast_rounds_values_and_gradients_to_16_bits() {
    // 1 + 2^-9 is too fine for bf16, 1 + 2^-12 and what is above 65504 for f16.
    let x = [1.0 + 1.0 / 512.0, 1.0 + 1.0 / 4096.0, -70000.0, 1.0 + 3.0 / 256.0];
    let bf16 = [1.0, 1.0, -70144.0, 1.015_625];
    let f16 = [1.0 + 1.0 / 512.0, 1.0, f64::NEG_INFINITY, 1.0 + 3.0 / 256.0];
    for (kind, expected) in [(Half::Bf16, bf16), (Half::F16, f16)] {
        assert_eq!(compute(Op::Cast(kind), &[(&[4], &x)]), expected);
        let single = x.map(|x| x as f32);
        assert_eq!(compute(Op::Cast(kind), &[(&[4], &single)]), expected.map(|x| x as f32));
        assert_eq!(gradient(Op::Cast(kind), &[4], &[0.3; 4], &x), expected);
    }
}
