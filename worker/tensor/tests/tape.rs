//! Handles, finality, accumulation and memory of the tape.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, Activation, DType, GradBuffer, GradSink, Layout, Meta, Op, OpError, ParamId, Tape,
    Value,
};

fn layout(params: &[(&str, &[usize])]) -> Arc<Layout> {
    let params = params.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec()));
    Arc::new(Layout::new(params.collect()).unwrap())
}

/// fc1 and fc2 with a relu between them; `spare` is never used.
struct Net {
    layout: Arc<Layout>,
    weights: Vec<f32>,
}

impl Net {
    fn new() -> Self {
        let layout = layout(&[
            ("fc1.weight", &[3, 2]),
            ("fc1.bias", &[3]),
            ("spare", &[2]),
            ("fc2.weight", &[2, 3]),
            ("fc2.bias", &[2]),
        ]);
        let weights = (0..layout.len()).map(|i| (i as f32 * 0.7).sin()).collect();
        Self { layout, weights }
    }

    fn forward(&self, tape: &mut Tape<f32>, rows: usize) -> (Value, Value) {
        let data: Vec<_> = (0..rows * 2).map(|i| (i as f32 * 1.3).cos()).collect();
        let x = tape.input(&[rows, 2], &data).unwrap();
        let layer = |tape: &mut Tape<f32>, name: &str, x| {
            let w = tape.param(self.layout.id(&format!("{name}.weight")).unwrap());
            let b = tape.param(self.layout.id(&format!("{name}.bias")).unwrap());
            tape.apply(Op::Linear(Activation::None), &[x, w, b], &self.weights).unwrap()
        };
        let hidden = layer(tape, "fc1", x);
        let active = tape.apply(Op::Relu, &[hidden], &self.weights).unwrap();
        let out = layer(tape, "fc2", active);
        (out, tape.apply(Op::Sum, &[out], &self.weights).unwrap())
    }

    fn gradient(&self, tape: &mut Tape<f32>, rows: usize) -> Vec<f32> {
        tape.clear();
        let (_, loss) = self.forward(tape, rows);
        let mut gradients = GradBuffer::new(Arc::clone(&self.layout));
        gradients.values_mut().fill(f32::NAN);
        let seeds: [(Value, &[f32]); 1] = [(loss, &[1.0])];
        tape.backward(&seeds, &self.weights, Accumulate::Overwrite, &mut gradients).unwrap();
        gradients.values().to_vec()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Records what backward does to its sink, in order.
struct Journal {
    buffer: GradBuffer<f32>,
    layout: Arc<Layout>,
    events: Vec<String>,
}

impl Journal {
    fn new(layout: &Arc<Layout>) -> Self {
        let buffer = GradBuffer::new(Arc::clone(layout));
        Self { buffer, layout: Arc::clone(layout), events: Vec::new() }
    }

    fn note(&mut self, what: &str, param: ParamId) {
        self.events.push(format!("{what} {}", self.layout.param(param).unwrap().name));
    }
}

impl GradSink<f32> for Journal {
    fn grad(&mut self, param: ParamId) -> &mut [f32] {
        self.note("write", param);
        self.buffer.grad(param)
    }

    fn ready(&mut self, param: ParamId) {
        self.note("ready", param);
        self.buffer.ready(param);
    }
}

#[test]
fn gradients_become_ready_in_arena_order_and_unused_ones_before_any_kernel() {
    let net = Net::new();
    let mut tape = Tape::new(Arc::clone(&net.layout));
    let (_, loss) = net.forward(&mut tape, 4);
    let mut journal = Journal::new(&net.layout);
    journal.buffer.values_mut().fill(f32::NAN);
    tape.backward(&[(loss, &[1.0])], &net.weights, Accumulate::Overwrite, &mut journal).unwrap();
    assert_eq!(
        journal.events,
        [
            "write spare",
            "ready spare",
            "write fc2.bias",
            "ready fc2.bias",
            "write fc2.weight",
            "ready fc2.weight",
            "write fc1.bias",
            "ready fc1.bias",
            "write fc1.weight",
            "ready fc1.weight",
        ]
    );
    assert_eq!(journal.buffer.of(net.layout.id("spare").unwrap()), Some(&[0.0, 0.0][..]));
    assert!(journal.buffer.values().iter().all(|g| g.is_finite()));
}

#[test]
fn parameters_off_the_path_of_the_seeds_count_as_unused() {
    let net = Net::new();
    let mut tape = Tape::new(Arc::clone(&net.layout));
    net.forward(&mut tape, 4);
    let bias = tape.param(net.layout.id("fc1.bias").unwrap());
    let loss = tape.apply(Op::Sum, &[bias], &net.weights).unwrap();
    let mut journal = Journal::new(&net.layout);
    tape.backward(&[(loss, &[1.0])], &net.weights, Accumulate::Overwrite, &mut journal).unwrap();
    assert_eq!(journal.events.last().unwrap(), "ready fc1.bias");
    assert_eq!(journal.buffer.ready_order().len(), 5);
    assert_eq!(journal.buffer.values().iter().sum::<f32>(), 3.0);
}

#[test]
fn a_shared_parameter_is_ready_once_after_its_first_use_has_written() {
    let layout = layout(&[("shared", &[2, 2]), ("own", &[2, 2])]);
    let weights: Vec<f32> = (1..=8_u8).map(f32::from).collect();
    let mut tape = Tape::new(Arc::clone(&layout));
    let (shared, own) = (layout.id("shared").unwrap(), layout.id("own").unwrap());
    let (shared, own) = (tape.param(shared), tape.param(own));
    let product = tape.apply(Op::MatMul, &[shared, own], &weights).unwrap();
    let square = tape.apply(Op::Mul, &[shared, shared], &weights).unwrap();
    let loss = tape.apply(Op::Add, &[product, square], &weights).unwrap();
    let mut journal = Journal::new(&layout);
    journal.buffer.values_mut().fill(f32::NAN);
    let seed = [1.0; 4];
    tape.backward(&[(loss, &seed)], &weights, Accumulate::Overwrite, &mut journal).unwrap();
    assert_eq!(
        journal.events,
        ["write shared", "write shared", "write own", "ready own", "write shared", "ready shared"]
    );
    // own lies first: [1 2; 3 4]; shared is [5 6; 7 8]. d shared = 1·ownᵀ + 2·shared.
    assert_eq!(journal.buffer.values(), [12.0, 12.0, 14.0, 14.0, 13.0, 19.0, 17.0, 23.0]);
}

#[test]
fn adding_leaves_unused_gradients_alone_and_still_reports_all() {
    let net = Net::new();
    let mut tape = Tape::new(Arc::clone(&net.layout));
    let fresh = net.gradient(&mut tape, 4);
    tape.clear();
    let (_, loss) = net.forward(&mut tape, 4);
    let mut gradients = GradBuffer::new(Arc::clone(&net.layout));
    gradients.values_mut().copy_from_slice(&fresh);
    let spare = net.layout.param(net.layout.id("spare").unwrap()).unwrap().range.clone();
    gradients.values_mut()[spare.clone()].fill(5.0);
    tape.backward(&[(loss, &[1.0])], &net.weights, Accumulate::Add, &mut gradients).unwrap();
    assert_eq!(gradients.ready_order().len(), 5);
    for (i, (once, twice)) in fresh.iter().zip(gradients.values()).enumerate() {
        let expected = if spare.contains(&i) { 5.0 } else { 2.0 * once };
        assert!((expected - twice).abs() <= 1e-6 * expected.abs(), "{i}: {expected} {twice}");
    }
}

#[test]
fn seeds_of_one_value_add_up_and_may_sit_on_parameters_and_inner_values() {
    let layout = layout(&[("p", &[2])]);
    let weights = [3.0_f32, 4.0];
    let mut tape = Tape::new(Arc::clone(&layout));
    let p = tape.param(ParamId(0));
    let square = tape.apply(Op::Mul, &[p, p], &weights).unwrap();
    let loss = tape.apply(Op::Sum, &[square], &weights).unwrap();
    let seeds: [(Value, &[f32]); 4] =
        [(loss, &[1.0]), (loss, &[1.0]), (square, &[10.0, 0.0]), (p, &[0.5, 0.25])];
    let mut gradients = GradBuffer::new(layout);
    tape.backward(&seeds, &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    // 2·2p + 10·2p + 0.5 and 2·2p + 0.25.
    assert_eq!(gradients.values(), [72.5, 16.25]);
    assert_eq!(gradients.ready_order(), [ParamId(0)]);
}

#[test]
fn operations_without_gradient_cut_it_off() {
    let layout = layout(&[("p", &[2, 2])]);
    let weights = [1.0_f64, 2.0, 3.0, 0.5];
    let mut tape = Tape::new(Arc::clone(&layout));
    let p = tape.param(ParamId(0));
    let detached = tape.apply(Op::Detach, &[p], &weights).unwrap();
    let half = tape.apply(Op::Mul, &[p, detached], &weights).unwrap();
    let best = tape.apply(Op::ArgMax, &[p], &weights).unwrap();
    let labels = tape.index(&[2], &[1, 1]).unwrap();
    let hits = tape.apply(Op::Equal, &[best, labels], &weights).unwrap();
    let kinds = tape.apply(Op::ToFloat, &[best], &weights).unwrap();
    assert_eq!(tape.indices(best).unwrap(), [1, 0]);
    assert_eq!(tape.values(hits).unwrap(), [1.0, 0.0]);
    assert_eq!(tape.values(kinds).unwrap(), [1.0, 0.0]);
    assert_eq!(tape.meta(hits).unwrap(), &Meta::new(DType::F64, [2]));
    let mut gradients = GradBuffer::new(layout);
    let ones = [1.0; 4];
    let seeds: [(Value, &[f64]); 3] = [(half, &ones), (hits, &ones[..2]), (kinds, &ones[..2])];
    tape.backward(&seeds, &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    assert_eq!(gradients.values(), weights);
}

#[test]
fn handles_of_another_generation_or_tape_are_refused() {
    let net = Net::new();
    let mut tape = Tape::new(Arc::clone(&net.layout));
    let mut other = Tape::new(Arc::clone(&net.layout));
    let old = tape.input(&[2], &[1.0, 2.0]).unwrap();
    let param = tape.param(ParamId(0));
    let foreign = other.input(&[2], &[1.0, 2.0]).unwrap();
    tape.clear();
    for value in [old, param, foreign] {
        let refused = tape.apply(Op::Neg, &[value], &net.weights).unwrap_err();
        assert!(matches!(refused, OpError::Stale { .. }), "{refused}");
        assert!(matches!(tape.values(value), Err(OpError::Stale { .. })));
        let mut sink = GradBuffer::new(Arc::clone(&net.layout));
        let refused =
            tape.backward(&[(value, &[1.0, 1.0])], &net.weights, Accumulate::Add, &mut sink);
        assert!(matches!(refused, Err(OpError::Stale { .. })));
        assert!(sink.ready_order().is_empty());
    }
    let unknown = tape.param(ParamId(99));
    let refused = tape.apply(Op::Neg, &[unknown], &net.weights).unwrap_err();
    assert_eq!(refused, OpError::UnknownParam { count: 5 });
}

#[test]
fn wrong_data_weights_seeds_and_sinks_are_refused_by_their_lengths() {
    struct Short(GradBuffer<f32>, [f32; 1]);
    impl GradSink<f32> for Short {
        fn grad(&mut self, _: ParamId) -> &mut [f32] {
            &mut self.1
        }
        fn ready(&mut self, param: ParamId) {
            self.0.ready(param);
        }
    }

    let net = Net::new();
    let mut tape = Tape::new(Arc::clone(&net.layout));
    let refused = tape.input(&[2, 3], &[0.0; 5]).unwrap_err().to_string();
    assert_eq!(refused, "input of shape [2, 3] has 6 elements, 5 given");
    let (out, loss) = net.forward(&mut tape, 2);
    let refused = tape.apply(Op::Neg, &[out], &[0.0; 3]).unwrap_err().to_string();
    assert_eq!(refused, "the layout has 19 weights, 3 given");
    let labels = tape.index(&[2], &[0, 1]).unwrap();
    let mut sink = GradBuffer::new(Arc::clone(&net.layout));
    let mut backward = |value, seed: &[f32]| {
        let seeds = [(value, seed)];
        tape.backward(&seeds, &net.weights, Accumulate::Overwrite, &mut sink).unwrap_err()
    };
    assert!(backward(loss, &[1.0, 1.0]).to_string().starts_with("seed of shape []"));
    assert!(matches!(backward(labels, &[1.0, 1.0]), OpError::Kind { .. }));
    let mut short = Short(GradBuffer::new(Arc::clone(&net.layout)), [0.0]);
    let seeds: [(Value, &[f32]); 1] = [(loss, &[1.0])];
    let refused = tape.backward(&seeds, &net.weights, Accumulate::Overwrite, &mut short);
    let expected = "the sink's memory for parameter spare has 1 elements, expected 2";
    assert_eq!(refused.unwrap_err().to_string(), expected);
}

#[test]
fn a_refused_operation_records_nothing_and_gather_names_row_and_index() {
    let layout = layout(&[]);
    let mut tape = Tape::<f32>::new(layout);
    let x = tape.input(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    for (index, bad) in [([0, 3], 3), ([0, -1], -1), ([0, i64::MIN], i64::MIN)] {
        let index = tape.index(&[2], &index).unwrap();
        let refused = tape.apply(Op::Gather, &[x, index], &[]).unwrap_err();
        let expected = OpError::IndexOutOfRange { op: "gather", row: 1, index: bad, len: 3 };
        assert_eq!(refused, expected);
    }
    let index = tape.index(&[2], &[2, 0]).unwrap();
    let picked = tape.apply(Op::Gather, &[x, index], &[]).unwrap();
    assert_eq!(tape.values(picked).unwrap(), [3.0, 4.0]);
    assert!(matches!(tape.values(index), Err(OpError::Kind { .. })));
    assert!(matches!(tape.indices(x), Err(OpError::Kind { .. })));
}

#[test]
fn results_have_the_same_bits_whatever_the_tape_held_before() {
    let net = Net::new();
    let first = net.gradient(&mut Tape::new(Arc::clone(&net.layout)), 5);
    let mut used = Tape::new(Arc::clone(&net.layout));
    for rows in [9, 1, 5, 3, 5] {
        let again = net.gradient(&mut used, rows);
        if rows == 5 {
            assert_eq!(bits(&first), bits(&again));
        }
    }
}

#[test]
fn a_grain_of_the_same_shapes_uses_the_memory_of_the_one_before() {
    let net = Net::new();
    let mut tape = Tape::new(Arc::clone(&net.layout));
    let (first, _) = net.forward(&mut tape, 6);
    let place = tape.values(first).unwrap().as_ptr();
    tape.clear();
    let (second, _) = net.forward(&mut tape, 6);
    assert_eq!(place, tape.values(second).unwrap().as_ptr());
}

#[test]
fn numbers_that_are_not_finite_come_through() {
    let mut tape = Tape::<f32>::new(layout(&[]));
    let x = tape.input(&[1, 3], &[f32::NAN, -1.0, 2.0]).unwrap();
    let relu = tape.apply(Op::Relu, &[x], &[]).unwrap();
    assert!(tape.values(relu).unwrap()[0].is_nan());
    assert_eq!(tape.values(relu).unwrap()[1..], [0.0, 2.0]);
    let softmax = tape.apply(Op::LogSoftmax, &[x], &[]).unwrap();
    assert!(tape.values(softmax).unwrap().iter().all(|y| y.is_nan()));
    let wide = tape.input(&[2, 3], &[1.0, f32::NAN, f32::NAN, 3.0, 5.0, 5.0]).unwrap();
    let best = tape.apply(Op::ArgMax, &[wide], &[]).unwrap();
    assert_eq!(tape.indices(best).unwrap(), [1, 1]);
}

#[test]
fn log_softmax_of_huge_logits_stays_finite() {
    let mut tape = Tape::<f32>::new(layout(&[]));
    let x = tape.input(&[1, 3], &[1e30, 0.0, -1e30]).unwrap();
    let y = tape.apply(Op::LogSoftmax, &[x], &[]).unwrap();
    assert_eq!(tape.values(y).unwrap(), [0.0, -1e30, -2e30]);
}

/// A net of three layers, the middle one recomputed or not.
fn deep(recompute: bool) -> (Vec<u32>, Vec<u32>) {
    let layout = layout(&[("a", &[4, 3]), ("b", &[4, 4]), ("c", &[2, 4])]);
    let weights: Vec<f32> = (0..layout.len()).map(|i| (i as f32 * 0.9).sin()).collect();
    let mut tape = Tape::new(Arc::clone(&layout));
    let mut gradients = GradBuffer::new(Arc::clone(&layout));
    let mut out = Vec::new();
    for _ in 0..2 {
        tape.clear();
        let data: Vec<_> = (0..15).map(|i| (i as f32 * 1.3).cos()).collect();
        let mut x = tape.input(&[5, 3], &data).unwrap();
        for name in ["a", "b", "c"] {
            let recomputes = recompute && name == "b";
            if recomputes {
                tape.begin_segment().unwrap();
            }
            let w = tape.param(layout.id(name).unwrap());
            let z = tape.apply(Op::Linear(Activation::Gelu), &[x, w], &weights).unwrap();
            let y = tape.apply(Op::Mul, &[z, z], &weights).unwrap();
            if recomputes {
                tape.end_segment(y).unwrap();
                let gone = tape.values(z);
                assert!(matches!(gone, Err(OpError::Released { .. })), "{gone:?}");
                let refused = tape.apply(Op::Neg, &[z], &weights);
                assert!(matches!(refused, Err(OpError::Released { .. })), "{refused:?}");
            }
            x = y;
        }
        out = bits(tape.values(x).unwrap());
        let seed = [1.0; 10];
        tape.backward(&[(x, &seed)], &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    }
    (out, bits(gradients.values()))
}

#[test]
fn a_recomputed_segment_changes_no_bit() {
    assert_eq!(deep(true), deep(false));
}

#[test]
fn segments_are_refused_where_they_make_no_sense() {
    let mut tape = Tape::<f32>::new(layout(&[]));
    let x = tape.input(&[1], &[1.0]).unwrap();
    assert!(matches!(tape.end_segment(x), Err(OpError::Segment { .. })));
    tape.begin_segment().unwrap();
    assert!(matches!(tape.begin_segment(), Err(OpError::Segment { .. })));
    assert!(matches!(tape.end_segment(x), Err(OpError::Segment { .. })), "made before it");
}

#[test]
fn backward_gives_up_what_it_has_used_and_says_so() {
    let net = Net::new();
    let mut tape = Tape::new(Arc::clone(&net.layout));
    let (out, loss) = net.forward(&mut tape, 4);
    let view = tape.apply(Op::Reshape([8].into_iter().collect()), &[out], &net.weights).unwrap();
    assert_eq!(tape.values(view).unwrap(), tape.values(out).unwrap());
    let mut gradients = GradBuffer::new(Arc::clone(&net.layout));
    let mut backward = |tape: &mut Tape<f32>| {
        tape.backward(&[(loss, &[1.0])], &net.weights, Accumulate::Overwrite, &mut gradients)
    };
    backward(&mut tape).unwrap();
    assert!(tape.values(loss).is_ok(), "a seed keeps its value");
    for value in [out, view] {
        assert!(matches!(tape.values(value), Err(OpError::Released { .. })));
    }
    assert!(matches!(backward(&mut tape), Err(OpError::Released { .. })), "once per forward");
}
