//! What is done to a product's result while it is still in the cache: bias, then activation.

use std::ops::Range;

use super::tile::TileBias;
use crate::{
    kernel::isa::{Isa, Kernel, vectorized_on},
    real::Real,
};

/// What is added to each element of the sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bias<'a, T> {
    None,
    /// The same for all of a column: a linear layer's.
    PerColumn(&'a [T]),
    /// The same for all of a row: a convolution's.
    PerRow(&'a [T]),
}

/// What is done to each element after the bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Identity,
    Relu,
}

/// Bias and activation, in this order, after the whole sum (and what was there, where it is added to).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epilogue<'a, T> {
    pub(crate) bias: Bias<'a, T>,
    pub(crate) activation: Activation,
}

impl<T: Real> Epilogue<'_, T> {
    pub(crate) const NONE: Self = Self { bias: Bias::None, activation: Activation::Identity };

    fn is_none(&self) -> bool {
        matches!(self.bias, Bias::None) && matches!(self.activation, Activation::Identity)
    }

    /// # Panics
    /// If a bias is not as long as the side it belongs to.
    pub(crate) fn check(&self, rows: usize, columns: usize) {
        let (given, needed) = match self.bias {
            Bias::None => return,
            Bias::PerColumn(bias) => (bias.len(), columns),
            Bias::PerRow(bias) => (bias.len(), rows),
        };
        assert!(given == needed, "bias of {given} elements for {needed}");
    }

    /// The part of the bias that belongs to a tile of these rows and columns.
    pub(super) fn bias_of(&self, rows: &Range<usize>, columns: &Range<usize>) -> TileBias<T> {
        match self.bias {
            Bias::None => TileBias::None,
            Bias::PerColumn(bias) => TileBias::PerColumn(bias[columns.clone()].as_ptr()),
            Bias::PerRow(bias) => TileBias::PerRow(bias[rows.clone()].as_ptr()),
        }
    }

    /// Finishes a piece of row `row` that begins at `column`.
    #[inline(always)]
    fn finish_piece(&self, row: usize, column: usize, piece: &mut [T]) {
        match self.bias {
            Bias::None => {}
            Bias::PerColumn(bias) => {
                for (value, bias) in piece.iter_mut().zip(&bias[column..]) {
                    *value += *bias;
                }
            }
            Bias::PerRow(bias) => {
                let bias = bias[row];
                piece.iter_mut().for_each(|value| *value += bias);
            }
        }
        match self.activation {
            Activation::Identity => {}
            Activation::Relu => {
                // Written so that NaN comes through.
                for value in piece {
                    *value = if *value <= T::ZERO { T::ZERO } else { *value };
                }
            }
        }
    }

    /// Finishes pieces of rows: `pieces` gives (row, first column, elements).
    pub(crate) fn finish<'p>(
        &self,
        isa: Isa,
        pieces: impl Iterator<Item = (usize, usize, &'p mut [T])>,
    ) where
        T: 'p,
    {
        if !self.is_none() {
            vectorized_on(isa, Pieces { epilogue: self, pieces });
        }
    }
}

struct Pieces<'e, T, P> {
    epilogue: &'e Epilogue<'e, T>,
    pieces: P,
}

impl<'p, T: Real, P: Iterator<Item = (usize, usize, &'p mut [T])>> Kernel for Pieces<'_, T, P> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (row, column, piece) in self.pieces {
            self.epilogue.finish_piece(row, column, piece);
        }
    }
}
