//! Drawn operations on drawn shapes, absurd ones among them: refused or computed, never a panic.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, Activation, Attention, Axes, DType, Dims, GradBuffer, Layout, Meta, Op, OpError,
    Pool2d, ScatterAdd, Slice, Tape, init::Stream,
};

const LENGTHS: [usize; 12] =
    [0, 1, 2, 3, 4, 6, 7, 1 << 20, 1 << 40, 1 << 63, usize::MAX - 1, usize::MAX];

/// Random choices, one after the other.
struct Draw {
    stream: Stream,
    count: u64,
}

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.count += 1;
        (self.stream.bits(self.count) % limit as u64) as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn length(&mut self) -> usize {
        self.of(&LENGTHS)
    }

    /// Small more often than not, so that something is computed.
    fn axis(&mut self) -> usize {
        if self.below(8) == 0 { self.length() } else { self.below(4) }
    }

    fn axes(&mut self) -> Dims {
        (0..self.below(5)).map(|_| self.axis()).collect()
    }

    fn op(&mut self) -> Op {
        let attention = Attention { heads: self.length(), causal: self.below(2) == 0 };
        let pair = |draw: &mut Self| [draw.length(), draw.length()];
        let pool = Pool2d { kernel: pair(self), stride: pair(self), padding: pair(self) };
        let axes = Axes { axes: self.axes(), keep: self.below(2) == 0 };
        match self.below(15) {
            0 => Op::MatMul,
            1 => Op::Attention(attention),
            2 => Op::SelfAttention(attention),
            3 => Op::MaxPool2d(pool),
            4 => Op::AvgPool2d(pool),
            5 => Op::AdaptiveAvgPool2d(pair(self)),
            6 => Op::SumAxes(axes),
            7 => Op::MeanAxes(axes),
            8 => Op::MaxAxes(axes),
            9 => Op::Permute(self.axes()),
            10 => Op::Slice(Slice { axis: self.axis(), start: self.length(), len: self.length() }),
            11 => Op::Concat(self.axis()),
            12 => Op::GatherAxis(self.axis()),
            13 => Op::ScatterAdd(ScatterAdd { axis: self.axis(), len: self.length() }),
            _ => Op::Where,
        }
    }

    /// Inputs that often go together: made of few lengths, or the same again.
    fn inputs(&mut self, op: &Op) -> Vec<Meta> {
        let lengths = [self.length(), self.length(), self.below(4)];
        let count = op.arity();
        let count = count.start() + self.below(count.end() - count.start() + 1);
        let mut inputs: Vec<Meta> = Vec::new();
        for place in 0..count {
            let rank = if self.below(20) == 0 { 9 } else { self.below(5) };
            let shape: Vec<_> = (0..rank).map(|_| self.of(&lengths)).collect();
            let same = inputs.last().filter(|_| self.below(3) != 0).map(|meta| meta.shape.clone());
            let is_index = match op {
                Op::GatherAxis(_) | Op::ScatterAdd(_) => place == 1,
                Op::Where => place == 0,
                Op::Attention(_) => place == 3,
                Op::SelfAttention(_) => place == 1,
                _ => self.below(20) == 0,
            };
            let dtype = if is_index { DType::I64 } else { DType::F64 };
            inputs.push(Meta::new(dtype, same.unwrap_or(shape)));
        }
        inputs
    }
}

/// Forward and backward, where there are few numbers.
fn run(op: &Op, inputs: &[Meta], out: &Meta) -> bool {
    if inputs.iter().any(|meta| 300 < meta.len()) || 5000 < out.len() {
        return false;
    }
    let params = inputs.iter().enumerate().filter(|(_, meta)| meta.dtype.is_float());
    let params = params.map(|(i, meta)| (i.to_string(), meta.shape.clone()));
    let layout = Arc::new(Layout::new(params.collect()).unwrap());
    let weights: Vec<_> = (0..layout.len()).map(|i| (i as f64).sin()).collect();
    let mut tape = Tape::new(Arc::clone(&layout));
    let mut values = Vec::new();
    for (i, meta) in inputs.iter().enumerate() {
        values.push(match layout.id(&i.to_string()) {
            Some(id) => tape.param(id),
            None => tape.index(&meta.shape, &vec![0; meta.len()]).unwrap(),
        });
    }
    let y = match tape.apply(op.clone(), &values, &weights) {
        Ok(y) => y,
        Err(OpError::IndexOutOfRange { .. }) => return true,
        Err(error) => panic!("{op:?} of {inputs:?}: {error}"),
    };
    assert_eq!(tape.meta(y).unwrap(), out, "{op:?} of {inputs:?}");
    if out.dtype.is_float() {
        let seed = vec![1.0; out.len()];
        let mut gradients = GradBuffer::new(layout);
        gradients.values_mut().fill(f64::NAN);
        let seeds: [(_, &[f64]); 1] = [(y, &seed)];
        tape.backward(&seeds, &weights, Accumulate::Overwrite, &mut gradients).unwrap();
        let is_whole = gradients.values().iter().all(|g| g.is_finite());
        assert!(is_whole, "{op:?} of {inputs:?}: part of a gradient is missing");
    }
    true
}

#[test]
fn no_shape_makes_inference_or_kernels_panic() {
    let mut draw = Draw { stream: Stream::new(11, "hostile"), count: 0 };
    let (mut refused, mut computed) = (0, 0);
    for _ in 0..300_000 {
        let op = draw.op();
        let inputs = draw.inputs(&op);
        match op.infer(&inputs.iter().collect::<Vec<_>>()) {
            Ok(out) => computed += usize::from(run(&op, &inputs, &out)),
            Err(_) => refused += 1,
        }
    }
    assert!(10_000 < refused && 10_000 < computed, "{refused} refused, {computed} computed");
}

#[test]
fn rows_of_a_layer_without_elements_may_be_more_than_can_be_counted() {
    let x = Meta::new(DType::F64, vec![1 << 40, 1 << 40, 0]);
    let w = Meta::new(DType::F64, vec![0, 0]);
    for activation in [Activation::None, Activation::Relu, Activation::Gelu] {
        for op in [Op::Linear(activation), Op::Affine(activation)] {
            let out = op.infer(&[&x, &w]).unwrap();
            assert!(run(&op, &[x.clone(), w.clone()], &out));
        }
    }
}
