//! What a max pool leaves out of its gradient is what the ReLU before it would stop.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{Accumulate, Conv2d, GradBuffer, Layout, Op, Pool2d, Tape, Value};

const CHANNELS: usize = 3;

/// Numbers of both signs, in no order.
fn numbers(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * step).sin()).collect()
}

/// The gradient of a convolution's weights through ReLU and max pool. `is_fused`: the ReLU is the convolution's own.
/// `is_shared`: what is pooled is also used as it is, which has a gradient where it is 0.
fn gradient([is_fused, is_shared]: [bool; 2], windows: Pool2d, size: [usize; 2]) -> Vec<u32> {
    let [height, width] = size;
    let params = vec![("weight".to_owned(), vec![CHANNELS, 2, 1, 1])];
    let layout = Arc::new(Layout::new(params).unwrap());
    let weights = numbers(layout.len(), 0.9);
    let mut tape = Tape::<f32>::new(Arc::clone(&layout));
    let apply =
        |op, inputs: &[Value], tape: &mut Tape<f32>| tape.apply(op, inputs, &weights).unwrap();
    let x = tape.input(&[2, 2, height, width], &numbers(4 * height * width, 1.7)).unwrap();
    let w = tape.param(layout.id("weight").unwrap());
    let conv = Op::Conv2d(Conv2d { relu: is_fused, ..Conv2d::default() });
    let mut y = apply(conv, &[x, w], &mut tape);
    if !is_fused {
        y = apply(Op::Relu, &[y], &mut tape);
    }
    let pooled = apply(Op::MaxPool2d(windows), &[y], &mut tape);
    let len = tape.meta(pooled).unwrap().len();
    let seed = numbers(len, 2.3);
    let direct = numbers(2 * CHANNELS * height * width, 0.3);
    let mut seeds: Vec<(Value, &[f32])> = vec![(pooled, &seed)];
    if is_shared {
        let other = apply(Op::Scale(0.5), &[y], &mut tape);
        seeds.push((other, &direct));
    }
    let mut gradients = GradBuffer::new(Arc::clone(&layout));
    tape.backward(&seeds, &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    gradients.values().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn pools_stop_what_the_convolutions_relu_would_stop() {
    let squares = Pool2d { kernel: [2, 2], stride: [2, 2], padding: [0, 0] };
    let others = Pool2d { kernel: [3, 3], stride: [2, 2], padding: [1, 1] };
    for windows in [squares, others] {
        for size in [[4, 4], [28, 28], [6, 32], [64, 10]] {
            for is_shared in [false, true] {
                let [fused, apart] =
                    [true, false].map(|is_fused| gradient([is_fused, is_shared], windows, size));
                assert_eq!(fused, apart, "{windows:?} over {size:?}, shared: {is_shared}");
            }
        }
    }
}
