//! Attention against its definition, element by element.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, Attention, GradBuffer, Layout, Op, Real, Tape, Value, init::Stream,
};

fn numbers(len: usize, name: &str) -> Vec<f64> {
    let stream = Stream::new(5, name);
    (0..len as u64).map(|i| 4.0 * stream.fraction(i) - 2.0).collect()
}

struct Case {
    how: Attention,
    /// Batch, queries, keys, width.
    sizes: [usize; 4],
    mask: Option<Vec<i64>>,
}

impl Case {
    /// `[q, k, v]` under their shapes.
    fn inputs(&self) -> [([usize; 3], Vec<f64>); 3] {
        let [batch, queries, keys, width] = self.sizes;
        [("q", queries), ("k", keys), ("v", keys)].map(|(name, positions)| {
            ([batch, positions, width], numbers(batch * positions * width, name))
        })
    }

    fn definition(&self) -> Vec<f64> {
        let [batch, queries, keys, width] = self.sizes;
        let [q, k, v] = self.inputs().map(|(_, data)| data);
        let head_width = width / self.how.heads;
        let mut y = vec![0.0; batch * queries * width];
        for b in 0..batch {
            for (query, head) in (0..queries).flat_map(|t| (0..self.how.heads).map(move |h| (t, h)))
            {
                let at = |positions: usize, position: usize, column: usize| {
                    (b * positions + position) * width + head * head_width + column
                };
                let score = |key: usize| -> f64 {
                    let products =
                        (0..head_width).map(|c| q[at(queries, query, c)] * k[at(keys, key, c)]);
                    products.sum::<f64>() / (head_width as f64).sqrt()
                };
                let seen: Vec<_> = (0..keys)
                    .filter(|&key| !self.how.causal || key <= query)
                    .filter(|&key| self.mask.as_ref().is_none_or(|m| m[b * keys + key] != 0))
                    .collect();
                let total: f64 = seen.iter().map(|&key| score(key).exp()).sum();
                for c in 0..head_width {
                    let values = seen.iter().map(|&key| score(key).exp() * v[at(keys, key, c)]);
                    let sum: f64 = values.sum();
                    y[at(queries, query, c)] = if seen.is_empty() { 0.0 } else { sum / total };
                }
            }
        }
        y
    }

    fn compute<T: Real>(&self) -> Vec<T> {
        let mut tape = Tape::<T>::new(Arc::new(Layout::new(Vec::new()).unwrap()));
        let mut inputs: Vec<_> = self
            .inputs()
            .iter()
            .map(|(shape, data)| {
                let data: Vec<_> = data.iter().map(|&x| T::from_f64(x)).collect();
                tape.input(shape, &data).unwrap()
            })
            .collect();
        if let Some(mask) = &self.mask {
            inputs.push(tape.index(&[self.sizes[0], self.sizes[2]], mask).unwrap());
        }
        let y = tape.apply(Op::Attention(self.how), &inputs, &[]).unwrap();
        tape.values(y).unwrap().to_vec()
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for causal in [false, true] {
        for (heads, sizes) in [
            (1, [1, 1, 1, 1]),
            (2, [2, 3, 3, 4]),
            (3, [2, 5, 9, 6]),
            (2, [1, 64, 64, 8]),
            (2, [2, 65, 65, 8]),
            (1, [1, 130, 40, 4]),
            (1, [1, 40, 130, 4]),
            (4, [1, 0, 3, 4]),
            (4, [1, 3, 0, 4]),
        ] {
            let how = Attention { heads, causal };
            let mask = numbers(sizes[0] * sizes[2], "mask");
            let mask = mask.iter().map(|&x| i64::from(-1.0 < x)).collect();
            cases.push(Case { how, sizes, mask: None });
            cases.push(Case { how, sizes, mask: Some(mask) });
        }
    }
    cases
}

#[test]
fn attention_is_what_its_definition_says_in_both_kinds_of_float() {
    for case in cases() {
        let expected = case.definition();
        let (exact, single) = (case.compute::<f64>(), case.compute::<f32>());
        assert_eq!((exact.len(), single.len()), (expected.len(), expected.len()));
        for ((expected, exact), single) in expected.iter().zip(exact).zip(single) {
            let label = format!("{:?} {:?}", case.how, case.sizes);
            assert!((expected - exact).abs() < 1e-13, "{label}: {expected} {exact}");
            assert!((expected - f64::from(single)).abs() < 1e-5, "{label}: {expected} {single}");
        }
    }
}

#[test]
fn a_query_that_may_attend_to_nothing_gives_zeros_and_the_others_do_not() {
    let how = Attention { heads: 2, causal: true };
    let mask = Some(vec![0, 0, 1, 0, 0, 0]);
    let y = Case { how, sizes: [2, 3, 3, 4], mask }.compute::<f32>();
    for (i, y) in y.iter().enumerate() {
        assert_eq!(*y == 0.0, i / 4 != 2, "{i}: {y}");
    }
}

/// Forward and gradients of the packed and the separate form, where their numbers are the same.
#[test]
fn packed_inputs_give_the_same_bits_as_separate_ones() {
    let [batch, positions, width] = [2, 70, 8];
    let shape = vec![batch, positions, width];
    let names = ["q", "k", "v"];
    let layout = Layout::new(names.map(|name| (name.to_owned(), shape.clone())).to_vec()).unwrap();
    let layout = Arc::new(layout);
    let len = batch * positions * width;
    let mut weights = vec![0.0_f32; 3 * len];
    for name in names {
        let range = layout.param(layout.id(name).unwrap()).unwrap().range.clone();
        let numbers = numbers(len, name).into_iter().map(|x| x as f32);
        weights[range].iter_mut().zip(numbers).for_each(|(w, x)| *w = x);
    }
    let packed_layout = Layout::new(vec![("qkv".to_owned(), vec![batch, positions, 3 * width])]);
    let packed_layout = Arc::new(packed_layout.unwrap());
    // Where element i of the packed tensor lies among the separate weights.
    let separate = |i: usize| {
        let (position, column) = (i / (3 * width), i % (3 * width));
        let id = layout.id(names[column / width]).unwrap();
        layout.param(id).unwrap().range.start + position * width + column % width
    };
    let packed_weights: Vec<_> = (0..3 * len).map(|i| weights[separate(i)]).collect();
    let mask: Vec<i64> = (0..batch * positions).map(|i| i64::from(i % 7 != 3)).collect();
    for causal in [false, true] {
        let how = Attention { heads: 2, causal };
        let run = |op: Op, layout: &Arc<Layout>, names: &[&str], weights: &[f32]| {
            let mut tape = Tape::<f32>::new(Arc::clone(layout));
            let mut inputs: Vec<Value> =
                names.iter().map(|name| tape.param(layout.id(name).unwrap())).collect();
            inputs.push(tape.index(&[batch, positions], &mask).unwrap());
            let y = tape.apply(op, &inputs, weights).unwrap();
            let values = tape.values(y).unwrap().to_vec();
            let seed: Vec<_> = numbers(len, "seed").into_iter().map(|x| x as f32).collect();
            let mut gradients = GradBuffer::new(Arc::clone(layout));
            let seeds: [(Value, &[f32]); 1] = [(y, &seed)];
            tape.backward(&seeds, weights, Accumulate::Overwrite, &mut gradients).unwrap();
            (values, gradients.values().to_vec())
        };
        let (y, gradient) = run(Op::Attention(how), &layout, &names, &weights);
        let (packed_y, packed_gradient) =
            run(Op::SelfAttention(how), &packed_layout, &["qkv"], &packed_weights);
        assert_eq!(bits(&y), bits(&packed_y));
        let gradient: Vec<_> = (0..3 * len).map(|i| gradient[separate(i)]).collect();
        assert_eq!(bits(&gradient), bits(&packed_gradient));
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn great_scores_do_not_overflow_and_nan_comes_through() {
    let mut tape = Tape::<f32>::new(Arc::new(Layout::new(Vec::new()).unwrap()));
    let how = Op::Attention(Attention { heads: 1, causal: false });
    let mut run = |q: [f32; 2]| {
        let q = tape.input(&[1, 2, 1], &q).unwrap();
        let k = tape.input(&[1, 2, 1], &[1e4, -1e4]).unwrap();
        let v = tape.input(&[1, 2, 1], &[3.0, 5.0]).unwrap();
        let y = tape.apply(how.clone(), &[q, k, v], &[]).unwrap();
        tape.values(y).unwrap().to_vec()
    };
    assert_eq!(run([1e4, -1e4]), [3.0, 5.0]);
    let y = run([f32::NAN, 0.0]);
    assert!(y[0].is_nan());
    assert_eq!(y[1], 4.0);
}
