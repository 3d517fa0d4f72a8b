//! The recorded models.

use lockstep_tensor::{Activation, Attention, Conv2d, LayerNorm, Op, Pool2d, Real, Value};

use super::run::Graph;

/// Where a model's figures are.
pub(crate) struct Files {
    /// In f32 and in f64.
    pub(crate) tensors: [&'static [u8]; 2],
    pub(crate) cases: &'static str,
}

macro_rules! files {
    ($model:literal) => {
        Files {
            tensors: [
                include_bytes!(concat!("../golden/", $model, "_f32.safetensors")),
                include_bytes!(concat!("../golden/", $model, "_f64.safetensors")),
            ],
            cases: include_str!(concat!("../golden/", $model, ".json")),
        }
    };
}

pub(crate) trait Net {
    const FILES: Files;

    /// Names of the parameters, in the order of their first use.
    fn params() -> Vec<String>;

    /// Whether the gradient of that place is mathematically zero, or the place is a running statistic that
    /// moves with such a parameter.
    fn is_free(_name: &str, _place: usize) -> bool {
        false
    }

    /// Outputs of `[targets, classes]`.
    fn forward<T: Real>(graph: &mut Graph<T>, input: Value) -> Value;
}

const LINEAR: Op = Op::Linear(Activation::None);

fn weights_and_biases(layers: &[&str]) -> Vec<String> {
    layers.iter().flat_map(|layer| [format!("{layer}.weight"), format!("{layer}.bias")]).collect()
}

pub(crate) struct Mlp;

impl Net for Mlp {
    const FILES: Files = files!("mlp");

    fn params() -> Vec<String> {
        weights_and_biases(&["fc1", "fc2", "fc3"])
    }

    fn forward<T: Real>(graph: &mut Graph<T>, input: Value) -> Value {
        let mut x = input;
        for layer in ["fc1", "fc2"] {
            x = graph.layer(LINEAR, x, layer);
            x = graph.apply(Op::Relu, &[x]);
        }
        graph.layer(LINEAR, x, "fc3")
    }
}

pub(crate) struct Cnn;

impl Net for Cnn {
    const FILES: Files = files!("cnn");

    /// The second convolution has no bias.
    fn params() -> Vec<String> {
        let mut names = weights_and_biases(&["conv1", "bn1", "conv2", "bn2", "fc"]);
        names.retain(|name| name != "conv2.bias");
        names
    }

    /// A batch norm takes away what the bias before it adds.
    fn is_free(name: &str, _place: usize) -> bool {
        ["conv1.bias", "bn1.running_mean"].contains(&name)
    }

    fn forward<T: Real>(graph: &mut Graph<T>, input: Value) -> Value {
        let conv1 = Conv2d { padding: [1, 1], ..Conv2d::default() };
        let conv2 = Conv2d { stride: [2, 2], ..conv1 };
        let halves = Pool2d { kernel: [2, 2], stride: [2, 2], padding: [0, 0] };
        let mut x = graph.layer(Op::Conv2d(conv1), input, "conv1");
        x = graph.batch_norm(x, "bn1");
        x = graph.apply(Op::Relu, &[x]);
        x = graph.apply(Op::MaxPool2d(halves), &[x]);
        let weight = graph.param("conv2.weight");
        x = graph.apply(Op::Conv2d(conv2), &[x, weight]);
        x = graph.batch_norm(x, "bn2");
        x = graph.apply(Op::Relu, &[x]);
        let samples = graph.tape.meta(x).unwrap().shape[0];
        x = graph.apply(Op::Reshape([samples, 64].into_iter().collect()), &[x]);
        graph.layer(LINEAR, x, "fc")
    }
}

pub(crate) struct Gpt;

impl Gpt {
    const BLOCKS: usize = 2;
    const NORM: Op = Op::LayerNorm(LayerNorm { eps: 1e-5 });

    fn block<T: Real>(graph: &mut Graph<T>, mut x: Value, block: usize) -> Value {
        let name = |layer: &str| format!("blocks.{block}.{layer}");
        let attention = Attention { heads: 2, causal: true };
        let mut y = graph.layer(Self::NORM, x, &name("ln1"));
        y = graph.layer(LINEAR, y, &name("qkv"));
        y = graph.apply(Op::SelfAttention(attention), &[y]);
        y = graph.layer(LINEAR, y, &name("proj"));
        x = graph.apply(Op::Add, &[x, y]);
        y = graph.layer(Self::NORM, x, &name("ln2"));
        y = graph.layer(LINEAR, y, &name("fc1"));
        y = graph.apply(Op::Gelu, &[y]);
        y = graph.layer(LINEAR, y, &name("fc2"));
        graph.apply(Op::Add, &[x, y])
    }
}

impl Net for Gpt {
    const FILES: Files = files!("gpt");

    fn params() -> Vec<String> {
        let mut names = vec!["tok.weight".to_owned(), "pos.weight".to_owned()];
        for block in 0..Self::BLOCKS {
            let layers = ["ln1", "qkv", "proj", "ln2", "fc1", "fc2"];
            let layers = layers.map(|layer| format!("blocks.{block}.{layer}"));
            names.extend(weights_and_biases(&layers.each_ref().map(String::as_str)));
        }
        names.extend(["ln.weight", "ln.bias", "head.weight"].map(str::to_owned));
        names
    }

    /// What the keys' bias adds to the scores of a query is the same for all keys: softmax takes it away.
    fn is_free(name: &str, place: usize) -> bool {
        name.ends_with("qkv.bias") && (16..32).contains(&place)
    }

    fn forward<T: Real>(graph: &mut Graph<T>, input: Value) -> Value {
        let shape = graph.tape.meta(input).unwrap().shape.clone();
        let places: Vec<_> = (0..shape[1] as i64).collect();
        let places = graph.tape.index(&[places.len()], &places).unwrap();
        let [tokens, positions] =
            [("tok.weight", input), ("pos.weight", places)].map(|(table, ids)| {
                let table = graph.param(table);
                graph.apply(Op::Embedding, &[table, ids])
            });
        let mut x = graph.apply(Op::Add, &[tokens, positions]);
        for block in 0..Self::BLOCKS {
            graph.note(format!("block{block}.in"), x);
            x = Self::block(graph, x, block);
        }
        graph.note("final_block.out", x);
        x = graph.layer(Self::NORM, x, "ln");
        let head = graph.param("head.weight");
        x = graph.apply(LINEAR, &[x, head]);
        graph.apply(Op::Reshape([shape[0] * shape[1], 17].into_iter().collect()), &[x])
    }
}
