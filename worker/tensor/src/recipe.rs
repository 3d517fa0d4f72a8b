//! An expression over named inputs, checked when it is recorded and replayed on a tape each grain.
//!
//! This is what a loss component builds: its shapes are known then, so that every mistake is found at
//! once and not in the middle of training. A recipe holds for the shapes it was recorded with; code
//! that builds one may have used them (a division by the batch length, say), so other shapes are
//! refused and want a recipe of their own.

use std::collections::{HashMap, HashSet};

use arrayvec::ArrayVec;

use crate::{
    error::OpError,
    meta::{DType, MAX_ELEMENTS, Meta, elements},
    ops::{MAX_INPUTS, Op},
    real::Real,
    tape::{Tape, Value},
};

/// The most nodes of one recipe.
pub const MAX_RECIPE_NODES: usize = 10_000;

/// The most elements that a recipe's constants have together (64 MiB).
pub const MAX_RECIPE_CONSTANTS: usize = 1 << 24;

/// A node of the recipe being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node(usize);

/// Records a recipe.
#[derive(Debug, Default)]
pub struct RecipeBuilder {
    nodes: Vec<Step>,
    metas: Vec<Meta>,
    inputs: HashMap<String, Node>,
    constants: usize,
}

/// A finished expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    nodes: Vec<Step>,
    metas: Vec<Meta>,
    inputs: HashMap<String, Node>,
    outputs: Vec<(String, Node)>,
}

/// What a replay put on a tape. The next replay uses its memory again.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// Of each node; of inputs only, until it is their turn.
    values: Vec<Option<Value>>,
    outputs: Vec<Value>,
}

impl Replay {
    /// The recipe's outputs, in their order.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Input(String),
    Constant(Vec<f32>),
    Apply(Op, Vec<Node>),
}

impl RecipeBuilder {
    /// An empty recipe.
    pub fn new() -> Self {
        Self::default()
    }

    /// A named input of that kind and shape.
    pub fn input(&mut self, name: &str, meta: Meta) -> Result<Node, OpError> {
        self.check_room()?;
        if MAX_ELEMENTS < meta.len() {
            let inputs = crate::error::Metas(vec![meta]);
            return Err(OpError::TooLarge { op: "input", inputs, limit: MAX_ELEMENTS });
        }
        if self.inputs.contains_key(name) {
            return Err(OpError::Duplicate { what: "input", name: name.to_owned() });
        }
        let node = self.push(Step::Input(name.to_owned()), meta);
        self.inputs.insert(name.to_owned(), node);
        Ok(node)
    }

    /// Fixed numbers.
    pub fn constant(&mut self, shape: &[usize], data: Vec<f32>) -> Result<Node, OpError> {
        self.check_room()?;
        let (expected, given) = (elements(shape), data.len());
        if expected != given {
            let shape = shape.to_vec();
            return Err(OpError::DataLength { what: "constant", shape, expected, given });
        }
        if MAX_RECIPE_CONSTANTS - self.constants < given {
            return Err(OpError::TooManyConstants { limit: MAX_RECIPE_CONSTANTS });
        }
        self.constants += given;
        Ok(self.push(Step::Constant(data), Meta::f32(shape)))
    }

    /// An operation on nodes; its shapes are checked now.
    pub fn apply(&mut self, op: Op, inputs: &[Node]) -> Result<Node, OpError> {
        self.check_room()?;
        op.check_arity(inputs.len())?;
        let metas = inputs.iter().map(|&node| self.meta(node)).collect::<Result<Vec<_>, _>>()?;
        let meta = op.infer(&metas)?;
        Ok(self.push(Step::Apply(op, inputs.to_vec()), meta))
    }

    /// Kind and shape of a node.
    pub fn meta(&self, node: Node) -> Result<&Meta, OpError> {
        let count = self.metas.len();
        self.metas.get(node.0).ok_or(OpError::UnknownNode { node: node.0, count })
    }

    /// Ends the recording; the outputs are what a replay returns.
    pub fn finish(self, outputs: Vec<(String, Node)>) -> Result<Recipe, OpError> {
        let mut names = HashSet::new();
        for (name, node) in &outputs {
            self.meta(*node)?;
            if !names.insert(name) {
                return Err(OpError::Duplicate { what: "output", name: name.clone() });
            }
        }
        let Self { nodes, metas, inputs, constants: _ } = self;
        Ok(Recipe { nodes, metas, inputs, outputs })
    }

    fn check_room(&self) -> Result<(), OpError> {
        if self.nodes.len() < MAX_RECIPE_NODES {
            return Ok(());
        }
        Err(OpError::TooManyNodes { limit: MAX_RECIPE_NODES })
    }

    fn push(&mut self, step: Step, meta: Meta) -> Node {
        self.nodes.push(step);
        self.metas.push(meta);
        Node(self.nodes.len() - 1)
    }
}

impl Recipe {
    /// Names, kinds and shapes of the inputs, in the order of their recording.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &Meta)> {
        self.nodes.iter().zip(&self.metas).filter_map(|(step, meta)| match step {
            Step::Input(name) => Some((name.as_str(), meta)),
            Step::Constant(_) | Step::Apply(..) => None,
        })
    }

    /// Names, kinds and shapes of the outputs.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &Meta)> {
        self.outputs.iter().map(|(name, node)| (name.as_str(), &self.metas[node.0]))
    }

    /// Elements of everything that a replay computes or copies, saturating: the memory of forward;
    /// backward needs up to as much again.
    pub fn elements(&self) -> usize {
        let computed = |(step, meta): (&Step, &Meta)| match step {
            Step::Input(_) => 0,
            Step::Constant(_) | Step::Apply(..) => meta.len(),
        };
        self.nodes.iter().zip(&self.metas).map(computed).fold(0, usize::saturating_add)
    }

    /// Applies all operations to values of a tape; `replay` has the outputs then, and nothing of use after an
    /// error. Replays of one recipe into the same memory allocate nothing after the first.
    ///
    /// # Errors
    /// Every input must be given once, with the shape it was recorded with. Floats are the tape's own kind.
    pub fn replay<T: Real>(
        &self,
        tape: &mut Tape<T>,
        inputs: &[(&str, Value)],
        weights: &[T],
        replay: &mut Replay,
    ) -> Result<(), OpError> {
        let Replay { values, outputs } = replay;
        values.clear();
        values.resize(self.nodes.len(), None);
        outputs.clear();
        for &(name, value) in inputs {
            let place = self.input_place(tape, name, value)?;
            if values[place].replace(value).is_some() {
                return Err(OpError::Duplicate { what: "input", name: name.to_owned() });
            }
        }
        for (place, (step, meta)) in self.nodes.iter().zip(&self.metas).enumerate() {
            let value = match step {
                Step::Input(name) => {
                    values[place].ok_or_else(|| OpError::MissingInput { name: name.clone() })?
                }
                Step::Constant(data) => tape.constant(&meta.shape, data)?,
                Step::Apply(op, nodes) => {
                    // All of them were replayed before: an operation takes what was recorded before it.
                    let arguments = nodes.iter().filter_map(|node| values[node.0]);
                    let arguments: ArrayVec<Value, MAX_INPUTS> = arguments.collect();
                    tape.apply(op.clone(), &arguments, weights)?
                }
            };
            values[place] = Some(value);
        }
        outputs.extend(self.outputs.iter().filter_map(|(_, node)| values[node.0]));
        Ok(())
    }

    /// The node of a given input.
    fn input_place<T: Real>(
        &self,
        tape: &Tape<T>,
        name: &str,
        value: Value,
    ) -> Result<usize, OpError> {
        let Some(&Node(place)) = self.inputs.get(name) else {
            let expected = self.inputs().map(|(name, _)| name.to_owned()).collect();
            return Err(OpError::UnknownInput { name: name.to_owned(), expected });
        };
        let (meta, recorded) = (tape.meta(value)?, &self.metas[place]);
        let same_kind = (meta.dtype == DType::I64) == (recorded.dtype == DType::I64);
        if same_kind && meta.shape == recorded.shape {
            return Ok(place);
        }
        let (given, expected) = (meta.clone(), recorded.clone());
        Err(OpError::InputMeta { name: name.to_owned(), given, expected })
    }
}
