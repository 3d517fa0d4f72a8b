//! Convolutions against the definition, and bits against bits.

use super::*;
use crate::kernel::gemm::Activation;

/// The plainest convolution there is.
const PLAIN: ConvShape = ConvShape {
    batch: 2,
    in_channels: 4,
    in_height: 9,
    in_width: 11,
    out_channels: 6,
    kernel: [3, 3],
    stride: [1, 1],
    padding: [1, 1],
    dilation: [1, 1],
    groups: 1,
};

/// Kernels, strides, paddings, dilations and groups in all their combinations, and some shapes that tiles, panels and
/// blocks do not divide.
fn shapes() -> Vec<ConvShape> {
    let mut shapes = Vec::new();
    for kernel in [[1, 1], [3, 3], [2, 5], [4, 1]] {
        for stride in [[1, 1], [2, 2], [3, 1], [2, 5]] {
            for padding in [[0, 0], [1, 1], [3, 2]] {
                for dilation in [[1, 1], [2, 3], [1, 2]] {
                    for groups in [1, 2] {
                        shapes.push(ConvShape {
                            kernel,
                            stride,
                            padding,
                            dilation,
                            groups,
                            ..PLAIN
                        });
                    }
                }
            }
        }
    }
    let wide = ConvShape { in_height: 14, in_width: 37, ..PLAIN };
    let deep = ConvShape { in_channels: 70, out_channels: 33, in_height: 5, in_width: 5, ..PLAIN };
    let depthwise = ConvShape { in_channels: 6, groups: 6, out_channels: 12, ..PLAIN };
    shapes.extend([
        wide,
        ConvShape { batch: 5, in_height: 1, in_width: 1, kernel: [1, 1], padding: [0, 0], ..wide },
        ConvShape { batch: 9, in_height: 2, in_width: 3, ..deep },
        ConvShape { batch: 3, ..deep },
        ConvShape { in_channels: 1, out_channels: 32, ..wide },
        ConvShape { in_channels: 3, out_channels: 16, stride: [2, 2], kernel: [7, 7], ..wide },
        depthwise,
        ConvShape { stride: [2, 2], ..depthwise },
        // Of 3 x 3 with many channels: odd and even sizes, padding of all kinds, groups, more tiles than a block has.
        ConvShape { in_channels: 16, out_channels: 17, ..PLAIN },
        ConvShape { in_channels: 40, out_channels: 34, padding: [0, 2], groups: 2, ..PLAIN },
        ConvShape { in_channels: 17, out_channels: 16, padding: [4, 3], in_height: 2, ..PLAIN },
        ConvShape { in_channels: 16, out_channels: 50, padding: [0, 0], in_height: 3, ..PLAIN },
        ConvShape { in_channels: 33, out_channels: 16, in_height: 1, in_width: 1, ..PLAIN },
        ConvShape { in_channels: 16, out_channels: 16, in_height: 4, in_width: 70, ..PLAIN },
        ConvShape { batch: 9, in_channels: 16, out_channels: 20, ..PLAIN },
        // A kernel that reaches beyond the image at both sides, padding beyond the kernel.
        ConvShape { in_height: 2, in_width: 2, kernel: [5, 5], padding: [4, 6], ..PLAIN },
        // Rows and columns that no output sees.
        ConvShape { padding: [0, 0], stride: [4, 4], kernel: [2, 2], ..PLAIN },
    ]);
    shapes.retain(|shape| shape.fault().is_none());
    assert!(150 < shapes.len());
    shapes
}

fn numbers<T: Real>(len: usize, salt: usize) -> Vec<T> {
    let number = |i: usize| ((i * 37 + i / 7 + salt * 11) % 7) as f64 - 3.0;
    (0..len).map(|i| T::from_f64(number(i))).collect()
}

fn rough(len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + salt * 104_729) as f32 * 0.618_034).sin()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every product of the definition: indices of x, w and y.
fn terms(shape: &ConvShape, mut term: impl FnMut(usize, usize, usize)) {
    let (height, width) = (shape.out_height(), shape.out_width());
    let (outs, ins) = (shape.out_channels / shape.groups, shape.in_channels / shape.groups);
    let [rows, columns] = shape.kernel;
    for y_index in 0..shape.out_len() {
        let (y, x) = (y_index / width % height, y_index % width);
        let out = y_index / (width * height) % shape.out_channels;
        let image = y_index / (width * height) / shape.out_channels;
        for w in 0..ins * rows * columns {
            let (channel, row, column) = (w / (rows * columns), w / columns % rows, w % columns);
            let source_y = y * shape.stride[0] + row * shape.dilation[0];
            let source_x = x * shape.stride[1] + column * shape.dilation[1];
            let (Some(source_y), Some(source_x)) =
                (source_y.checked_sub(shape.padding[0]), source_x.checked_sub(shape.padding[1]))
            else {
                continue;
            };
            if source_y < shape.in_height && source_x < shape.in_width {
                let plane = image * shape.in_channels + out / outs * ins + channel;
                let x_index = (plane * shape.in_height + source_y) * shape.in_width + source_x;
                term(x_index, out * ins * rows * columns + w, y_index);
            }
        }
    }
}

fn with<R>(isa: Isa, work: impl FnOnce(With<'_>) -> R) -> R {
    work(With::new(&Threads::single(), &mut Scratch::new()).on(isa))
}

fn add<T: Real>(values: &[T], to: T) -> Vec<T> {
    values.iter().map(|&value| value + to).collect()
}

/// Small integers: every order of summation gives the same bits.
fn equal_the_definition<T: Real>() {
    for shape in shapes() {
        let (x, w) = (numbers::<T>(shape.in_len(), 1), numbers::<T>(shape.weight_len(), 2));
        let g = numbers::<T>(shape.out_len(), 3);
        let [mut y, mut dx, mut dw] = [g.len(), x.len(), w.len()].map(|len| vec![T::ZERO; len]);
        terms(&shape, |x_index, w_index, y_index| {
            y[y_index] += x[x_index] * w[w_index];
            dx[x_index] += g[y_index] * w[w_index];
            dw[w_index] += g[y_index] * x[x_index];
        });
        for isa in Isa::supported() {
            let nan = T::from_f64(f64::NAN);
            let mut given = vec![nan; y.len()];
            with(isa, |with| forward(&shape, &x, &w, &mut given, Epilogue::NONE, with));
            assert_eq!(given, y, "y of {shape:?} {isa:?}");
            for (mode, before, due) in [(Write::Set, nan, T::ZERO), (Write::Add, T::ONE, T::ONE)] {
                let mut given = vec![before; dx.len()];
                with(isa, |with| gradient_of_input(&shape, &g, &w, &mut given, mode, with));
                assert_eq!(given, add(&dx, due), "dx of {shape:?} {isa:?} {mode:?}");
                let mut given = vec![before; dw.len()];
                with(isa, |with| gradient_of_weight(&shape, &x, &g, &mut given, mode, with));
                assert_eq!(given, add(&dw, due), "dw of {shape:?} {isa:?} {mode:?}");
            }
        }
    }
}

#[test]
fn convolutions_and_gradients_equal_the_definition_in_f32() {
    equal_the_definition::<f32>();
}

#[test]
fn convolutions_and_gradients_equal_the_definition_in_f64() {
    equal_the_definition::<f64>();
}

#[test]
fn bias_and_relu_follow_the_sum() {
    for shape in shapes() {
        let (x, w) = (numbers::<f32>(shape.in_len(), 1), numbers::<f32>(shape.weight_len(), 2));
        let bias = numbers::<f32>(shape.out_channels, 4);
        let mut due = vec![0.0; shape.out_len()];
        terms(&shape, |x_index, w_index, y_index| due[y_index] += x[x_index] * w[w_index]);
        let plane = shape.out_plane();
        for (i, due) in due.iter_mut().enumerate() {
            *due = (*due + bias[i / plane % shape.out_channels]).max(0.0);
        }
        let mut y = vec![f32::NAN; due.len()];
        let epilogue = Epilogue { bias: Bias::PerRow(&bias), activation: Activation::Relu };
        with(isa(), |with| forward(&shape, &x, &w, &mut y, epilogue, with));
        assert_eq!(y, due, "{shape:?}");
    }
}

/// All three results.
fn results(shape: &ConvShape, with: impl Fn(&mut dyn FnMut(With<'_>))) -> [Vec<u32>; 3] {
    let (x, w) = (rough(shape.in_len(), 1), rough(shape.weight_len(), 2));
    let g = rough(shape.out_len(), 3);
    let mut y = vec![0.0; g.len()];
    let (mut dx, mut dw) = (rough(x.len(), 4), rough(w.len(), 5));
    with(&mut |with| forward(shape, &x, &w, &mut y, Epilogue::NONE, with));
    with(&mut |with| gradient_of_input(shape, &g, &w, &mut dx, Write::Add, with));
    with(&mut |with| gradient_of_weight(shape, &x, &g, &mut dw, Write::Add, with));
    [bits(&y), bits(&dx), bits(&dw)]
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let counts = [1, 2, 4].map(|count| Threads::new(count).unwrap());
    let large = ConvShape { batch: 7, in_channels: 20, out_channels: 40, ..PLAIN };
    let strided = ConvShape { stride: [2, 2], groups: 2, ..large };
    for shape in shapes().into_iter().step_by(7).chain([large, strided]) {
        let [one, two, four] = counts
            .each_ref()
            .map(|threads| results(&shape, |work| work(With::new(threads, &mut Scratch::new()))));
        assert!(one == two && one == four, "{shape:?}");
    }
}

#[test]
fn avx2_and_avx512_give_the_same_bits() {
    if isa() < Isa::Avx512 {
        return;
    }
    for shape in shapes() {
        let of = |isa| results(&shape, |work| with(isa, work));
        assert!(of(Isa::Avx2) == of(Isa::Avx512), "{shape:?}");
    }
}

/// An image's output has the same bits in every batch.
#[test]
fn forward_bits_do_not_depend_on_the_batch() {
    let shape = ConvShape { batch: 6, in_channels: 70, out_channels: 20, ..PLAIN };
    let one = ConvShape { batch: 1, ..shape };
    let (x, w) = (rough(shape.in_len(), 1), rough(shape.weight_len(), 2));
    let run = |shape: &ConvShape, x: &[f32]| {
        let mut y = vec![0.0; shape.out_len()];
        with(isa(), |with| forward(shape, x, &w, &mut y, Epilogue::NONE, with));
        bits(&y)
    };
    let all = run(&shape, &x);
    for (image, x) in x.chunks(one.in_len()).enumerate() {
        assert_eq!(run(&one, x), all[image * one.out_len()..][..one.out_len()], "image {image}");
    }
}

#[test]
fn an_empty_batch_has_no_output_and_a_gradient_of_zero() {
    let shape = ConvShape { batch: 0, groups: 2, ..PLAIN };
    let w = numbers::<f32>(shape.weight_len(), 1);
    let mut dw = vec![f32::NAN; w.len()];
    with(isa(), |with| forward(&shape, &[], &w, &mut [], Epilogue::NONE, with));
    with(isa(), |with| gradient_of_input(&shape, &[], &w, &mut [], Write::Set, with));
    with(isa(), |with| gradient_of_weight(&shape, &[], &[], &mut dw, Write::Set, with));
    assert_eq!(dw, vec![0.0; w.len()]);
}

#[test]
fn faulty_shapes_are_named_and_none_overflows() {
    let faulty = [
        ConvShape { stride: [0, 1], ..PLAIN },
        ConvShape { dilation: [1, 0], ..PLAIN },
        ConvShape { groups: 0, ..PLAIN },
        ConvShape { groups: 4, ..PLAIN },
        ConvShape { groups: 3, ..PLAIN },
        ConvShape { kernel: [0, 3], ..PLAIN },
        ConvShape { kernel: [12, 3], ..PLAIN },
        ConvShape { padding: [usize::MAX, 1], ..PLAIN },
        ConvShape { dilation: [usize::MAX, 1], ..PLAIN },
        ConvShape { batch: usize::MAX, ..PLAIN },
        ConvShape { in_height: usize::MAX, in_width: usize::MAX, ..PLAIN },
        ConvShape { out_channels: usize::MAX, ..PLAIN },
    ];
    for shape in faulty {
        assert!(shape.fault().is_some(), "{shape:?}");
    }
    assert_eq!(PLAIN.fault(), None);
    assert_eq!((PLAIN.out_height(), PLAIN.out_width()), (9, 11));
}

/// Against the definition in f64, beside the largest sum of the terms' sizes: a transform spreads the error of a tile's
/// largest pixels over all of it, so that no bound holds element by element.
#[test]
fn errors_stay_within_a_few_units_of_the_terms_sizes() {
    let direct = ConvShape { batch: 4, in_channels: 60, out_channels: 60, groups: 5, ..PLAIN };
    let transformed = ConvShape { groups: 1, ..direct };
    for shape in [direct, transformed] {
        let (x, w) = (rough(shape.in_len(), 1), rough(shape.weight_len(), 2));
        let g = rough(shape.out_len(), 3);
        let zeros = [g.len(), x.len(), w.len()].map(|len| vec![0.0_f64; len]);
        let (mut due, mut sizes) = (zeros.clone(), zeros);
        terms(&shape, |x_index, w_index, y_index| {
            let [x, w, g] = [x[x_index], w[w_index], g[y_index]].map(f64::from);
            let places = [(y_index, x * w), (x_index, g * w), (w_index, g * x)];
            for (which, (index, term)) in places.into_iter().enumerate() {
                due[which][index] += term;
                sizes[which][index] += term.abs();
            }
        });
        for isa in Isa::supported() {
            let [mut y, mut dx, mut dw] = [g.len(), x.len(), w.len()].map(|len| vec![0.0; len]);
            with(isa, |with| forward(&shape, &x, &w, &mut y, Epilogue::NONE, with));
            with(isa, |with| gradient_of_input(&shape, &g, &w, &mut dx, Write::Set, with));
            with(isa, |with| gradient_of_weight(&shape, &x, &g, &mut dw, Write::Set, with));
            for (which, given) in [y, dx, dw].iter().enumerate() {
                let size = sizes[which].iter().copied().fold(0.0, f64::max);
                let error = given.iter().zip(&due[which]);
                let error = error.map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
                let units = error / size / f64::from(f32::EPSILON);
                assert!(units < 8.0, "{units} units of {which} of {shape:?} {isa:?}");
            }
        }
    }
}
