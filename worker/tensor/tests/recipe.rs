//! Recipes: recorded once, replayed on tapes.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, DType, GradBuffer, Layout, MAX_RECIPE_CONSTANTS, MAX_RECIPE_NODES, Meta, Op,
    OpError, ParamId, Real, Recipe, RecipeBuilder, Replay, Tape, Value,
};

/// Summed cross entropy with a weight for each class, and the number of hits.
fn cross_entropy(rows: usize) -> Recipe {
    let mut builder = RecipeBuilder::new();
    let logits = builder.input("logits", Meta::f32([rows, 3])).unwrap();
    let labels = builder.input("labels", Meta::i64([rows])).unwrap();
    let classes = builder.constant(&[3], vec![1.0, 0.5, 2.0]).unwrap();
    let log = builder.apply(Op::LogSoftmax, &[logits]).unwrap();
    let weighted = builder.apply(Op::Mul, &[log, classes]).unwrap();
    let picked = builder.apply(Op::Gather, &[weighted, labels]).unwrap();
    let sum = builder.apply(Op::Sum, &[picked]).unwrap();
    let loss = builder.apply(Op::Neg, &[sum]).unwrap();
    let best = builder.apply(Op::ArgMax, &[logits]).unwrap();
    let hits = builder.apply(Op::Equal, &[best, labels]).unwrap();
    let hits = builder.apply(Op::Sum, &[hits]).unwrap();
    assert_eq!(builder.meta(weighted).unwrap(), &Meta::f32([rows, 3]));
    builder.finish(vec![("sum".to_owned(), loss), ("hits".to_owned(), hits)]).unwrap()
}

struct Model<T: Real> {
    layout: Arc<Layout>,
    weights: Vec<T>,
    labels: Vec<i64>,
}

impl<T: Real> Model<T> {
    fn new() -> Self {
        let layout = Arc::new(Layout::new(vec![("logits".to_owned(), vec![4, 3])]).unwrap());
        let weights = (0..12_u8).map(|i| T::from_f64(f64::from(i * 5 % 7))).collect();
        Self { layout, weights, labels: vec![0, 1, 2, 2] }
    }

    fn gradient(&self, tape: &mut Tape<T>, loss: Value) -> Vec<T> {
        let mut gradients = GradBuffer::new(Arc::clone(&self.layout));
        let one = [T::ONE];
        let seeds: [(Value, &[T]); 1] = [(loss, &one)];
        tape.backward(&seeds, &self.weights, Accumulate::Overwrite, &mut gradients).unwrap();
        gradients.values().to_vec()
    }

    fn replayed(&self, recipe: &Recipe) -> (T, T, Vec<T>) {
        let mut tape = Tape::new(Arc::clone(&self.layout));
        let logits = tape.param(ParamId(0));
        let labels = tape.index(&[4], &self.labels).unwrap();
        let inputs = [("labels", labels), ("logits", logits)];
        let mut replay = Replay::default();
        recipe.replay(&mut tape, &inputs, &self.weights, &mut replay).unwrap();
        let &[sum, hits] = replay.outputs() else { panic!("{replay:?}") };
        let number = |value| tape.values(value).unwrap()[0];
        (number(sum), number(hits), self.gradient(&mut tape, sum))
    }

    fn direct(&self) -> (T, T, Vec<T>) {
        let mut tape = Tape::new(Arc::clone(&self.layout));
        let logits = tape.param(ParamId(0));
        let labels = tape.index(&[4], &self.labels).unwrap();
        let classes = [1.0, 0.5, 2.0].map(T::from_f64);
        let classes = tape.input(&[3], &classes).unwrap();
        let mut apply = |op, inputs: &[Value]| tape.apply(op, inputs, &self.weights).unwrap();
        let log = apply(Op::LogSoftmax, &[logits]);
        let weighted = apply(Op::Mul, &[log, classes]);
        let picked = apply(Op::Gather, &[weighted, labels]);
        let sum = apply(Op::Sum, &[picked]);
        let loss = apply(Op::Neg, &[sum]);
        let best = apply(Op::ArgMax, &[logits]);
        let hits = apply(Op::Equal, &[best, labels]);
        let hits = apply(Op::Sum, &[hits]);
        let number = |value| tape.values(value).unwrap()[0];
        let (sum, hits) = (number(loss), number(hits));
        (sum, hits, self.gradient(&mut tape, loss))
    }
}

#[test]
fn a_replay_equals_the_operations_applied_directly() {
    let recipe = cross_entropy(4);
    let single = Model::<f32>::new();
    assert_eq!(single.replayed(&recipe), single.direct());
    let double = Model::<f64>::new();
    assert_eq!(double.replayed(&recipe), double.direct());
}

#[test]
fn a_recipe_tells_its_inputs_outputs_and_size() {
    let recipe = cross_entropy(4);
    let inputs: Vec<_> = recipe.inputs().map(|(name, meta)| format!("{name} {meta}")).collect();
    assert_eq!(inputs, ["logits f32[4, 3]", "labels i64[4]"]);
    let outputs: Vec<_> = recipe.outputs().map(|(name, meta)| format!("{name} {meta}")).collect();
    assert_eq!(outputs, ["sum f32[]", "hits f32[]"]);
    assert_eq!(recipe.elements(), 3 + 12 + 12 + 4 + 1 + 1 + 4 + 4 + 1);
}

#[test]
fn a_replay_refuses_inputs_that_differ_from_the_recorded_ones() {
    let recipe = cross_entropy(4);
    let mut tape = Tape::<f32>::new(Arc::new(Layout::new(Vec::new()).unwrap()));
    let logits = tape.input(&[4, 3], &[0.0; 12]).unwrap();
    let short = tape.input(&[3, 3], &[0.0; 9]).unwrap();
    let labels = tape.index(&[4], &[0; 4]).unwrap();
    let floats = tape.input(&[4], &[0.0; 4]).unwrap();
    let mut replay = Replay::default();
    let mut refusal = |inputs: &[(&str, Value)]| {
        let refused = recipe.replay(&mut tape, inputs, &[], &mut replay).unwrap_err();
        assert!(replay.outputs().is_empty());
        refused.to_string()
    };
    assert_eq!(refusal(&[("logits", logits)]), r#"input "labels" is missing"#);
    assert_eq!(
        refusal(&[("logits", short), ("labels", labels)]),
        r#"input "logits" is f32[3, 3], recorded as f32[4, 3]"#
    );
    assert_eq!(
        refusal(&[("logits", logits), ("labels", floats)]),
        r#"input "labels" is f32[4], recorded as i64[4]"#
    );
    assert_eq!(
        refusal(&[("image", logits)]),
        r#"there is no input "image"; expected ["logits", "labels"]"#
    );
    assert_eq!(
        refusal(&[("logits", logits), ("labels", labels), ("logits", logits)]),
        r#"input "logits" is given twice"#
    );
}

#[test]
fn recording_refuses_what_does_not_fit_at_once() {
    let mut builder = RecipeBuilder::new();
    let x = builder.input("x", Meta::f32([2, 3])).unwrap();
    let twice = builder.input("x", Meta::f32([2, 3])).unwrap_err();
    assert_eq!(twice, OpError::Duplicate { what: "input", name: "x".to_owned() });
    let huge = builder.input("huge", Meta::f32([usize::MAX, 2])).unwrap_err();
    assert!(matches!(huge, OpError::TooLarge { .. }));
    let refused = builder.apply(Op::MatMul, &[x, x]).unwrap_err().to_string();
    assert!(refused.starts_with("matmul of f32[2, 3], f32[2, 3]"), "{refused}");
    assert!(matches!(builder.apply(Op::Add, &[x]), Err(OpError::Arity { .. })));
    assert!(matches!(builder.constant(&[2], vec![1.0]), Err(OpError::DataLength { .. })));
    let mut other = RecipeBuilder::new();
    assert!(matches!(other.apply(Op::Neg, &[x]), Err(OpError::UnknownNode { .. })));
    assert!(matches!(other.finish(vec![("x".to_owned(), x)]), Err(OpError::UnknownNode { .. })));
    let outputs = vec![("y".to_owned(), x), ("y".to_owned(), x)];
    assert!(matches!(builder.finish(outputs), Err(OpError::Duplicate { .. })));
}

#[test]
fn nodes_and_constants_are_limited() {
    let mut builder = RecipeBuilder::new();
    let mut node = builder.constant(&[], vec![1.0]).unwrap();
    for _ in 1..MAX_RECIPE_NODES {
        node = builder.apply(Op::Neg, &[node]).unwrap();
    }
    let limit = MAX_RECIPE_NODES;
    assert_eq!(builder.apply(Op::Neg, &[node]), Err(OpError::TooManyNodes { limit }));
    assert_eq!(builder.constant(&[], vec![1.0]), Err(OpError::TooManyNodes { limit }));
    let input = builder.input("x", Meta::new(DType::F32, []));
    assert_eq!(input, Err(OpError::TooManyNodes { limit }));

    let mut builder = RecipeBuilder::new();
    let limit = MAX_RECIPE_CONSTANTS;
    builder.constant(&[limit - 1], vec![0.0; limit - 1]).unwrap();
    builder.constant(&[], vec![0.0]).unwrap();
    let refused = builder.constant(&[], vec![0.0]);
    assert_eq!(refused, Err(OpError::TooManyConstants { limit }));
}
