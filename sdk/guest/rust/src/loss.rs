//! Losses as expressions.

use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::generated::loss::exports::lockstep::guest::loss as exports;
use crate::generated::loss::lockstep::guest::graph;
use crate::{Error, Tensor, panics};

/// Combines the model's outputs and the batch into a loss. The expression is recorded and differentiated
/// by the engine, so this runs once for each set of shapes, not once a step.
pub trait Loss: 'static {
    /// `config` is the job's JSON (see [`crate::config`]), `outputs` are the model's, `batch` is the loader's.
    fn build(config: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error>;
}

/// Tensors by name.
#[derive(Debug)]
pub struct Tensors(Vec<(String, Tensor)>);

impl Tensors {
    /// A tensor that must be there.
    pub fn get(&self, name: &str) -> Result<&Tensor, Error> {
        self.find(name).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            Error::data(format!("there is no tensor {name:?}; there are {names:?}"))
        })
    }

    /// A tensor that may be there.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// A finished loss: Σ sum / Σ weight over the whole global batch, so that the mean is exact however the
/// batch is cut.
#[derive(Debug)]
pub struct Built {
    sum: Tensor,
    weight: Tensor,
    metrics: Vec<(String, Tensor, Tensor)>,
}

impl Built {
    /// Sum of the samples' losses, and of their weights (their number, if all count alike). Both scalars.
    pub fn new(sum: Tensor, weight: Tensor) -> Self {
        Self { sum, weight, metrics: Vec::new() }
    }

    /// Adds a number to report: Σ sum / Σ weight.
    pub fn metric(mut self, name: &str, sum: Tensor, weight: Tensor) -> Self {
        self.metrics.push((name.to_owned(), sum, weight));
        self
    }
}

impl Tensor {
    /// A fixed number, a scalar.
    pub fn number(value: f32) -> Self {
        graph::constant(&[], &[value])
    }

    /// Fixed numbers.
    pub fn constant(shape: &[u32], data: &[f32]) -> Self {
        graph::constant(shape, data)
    }

    /// The last two axes, exchanged: [..,m,n] -> [..,n,m].
    pub fn transpose(&self) -> Self {
        // With fewer axes the host refuses to exchange them, by name.
        let rank = (self.shape().len() as u32).max(2);
        let last = [rank - 1, rank - 2];
        self.permute(&(0..rank - 2).chain(last).collect::<Vec<_>>())
    }

    /// Length of the first axis; 1 for a scalar.
    pub fn rows(&self) -> u32 {
        self.shape().first().copied().unwrap_or(1)
    }
}

macro_rules! operators {
    ($($trait:ident::$name:ident),+) => {
        $(impl $trait for &Tensor {
            type Output = Tensor;

            fn $name(self, other: &Tensor) -> Tensor {
                Tensor::$name(self, other)
            }
        })+
    };
}

operators!(Add::add, Sub::sub, Mul::mul, Div::div);

impl Neg for &Tensor {
    type Output = Tensor;

    fn neg(self) -> Tensor {
        Tensor::neg(self)
    }
}

#[doc(hidden)]
pub struct LossGuest<L>(PhantomData<L>);

impl<L: Loss> exports::Guest for LossGuest<L> {
    fn build(
        config: String,
        outputs: Vec<(String, Tensor)>,
        batch: Vec<(String, Tensor)>,
    ) -> Result<exports::Built, Error> {
        panics::report();
        let Built { sum, weight, metrics } = L::build(&config, &Tensors(outputs), &Tensors(batch))?;
        Ok(exports::Built { sum, weight, metrics })
    }
}

/// Makes a [`Loss`] this component's export. Once in a crate of type `cdylib`.
#[macro_export]
macro_rules! export_loss {
    ($loss:ty) => {
        type LockstepLossGuest = $crate::LossGuest<$loss>;
        $crate::generated::loss::export!(
            LockstepLossGuest with_types_in $crate::generated::loss
        );
    };
}
