//! Where each parameter lies in the flat arenas of weights, gradients and moments.

use std::{collections::HashMap, ops::Range};

use crate::meta::{MAX_ELEMENTS, elements};

/// A parameter's place in [`Layout::params`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// One parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Unique in its layout.
    pub name: String,
    /// Row-major; `[]` is a scalar.
    pub shape: Vec<usize>,
    /// Element range, the same in every arena.
    pub range: Range<usize>,
}

/// Parameters in arena order, which is the reverse of their first use in forward.
///
/// Backward finishes gradients in that order, so that a bucket of gradients that become ready
/// together is one contiguous range. There are no gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    params: Vec<Param>,
    ids: HashMap<String, ParamId>,
    len: usize,
}

/// A list of parameters that cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("two parameters are named {name:?}")]
    Duplicate { name: String },
    #[error("the parameters have more than {limit} elements together")]
    TooLarge { limit: usize },
}

impl Layout {
    /// Lays out parameters that are given in the order of their first use in forward.
    pub fn new(in_order_of_use: Vec<(String, Vec<usize>)>) -> Result<Self, LayoutError> {
        let mut layout = Self { params: Vec::new(), ids: HashMap::new(), len: 0 };
        for (name, shape) in in_order_of_use.into_iter().rev() {
            let end = layout.len.saturating_add(elements(&shape));
            if MAX_ELEMENTS < end {
                return Err(LayoutError::TooLarge { limit: MAX_ELEMENTS });
            }
            if layout.ids.insert(name.clone(), ParamId(layout.params.len())).is_some() {
                return Err(LayoutError::Duplicate { name });
            }
            layout.params.push(Param { name, shape, range: layout.len..end });
            layout.len = end;
        }
        Ok(layout)
    }

    /// All parameters, in arena order; [`ParamId`] is the place in it.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// One parameter, if there is such.
    pub fn param(&self, id: ParamId) -> Option<&Param> {
        self.params.get(id.0)
    }

    /// Elements of an arena.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to train.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Looks a parameter up by name.
    pub fn id(&self, name: &str) -> Option<ParamId> {
        self.ids.get(name).copied()
    }

    /// All ids, in arena order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = ParamId> + ExactSizeIterator + use<> {
        (0..self.params.len()).map(ParamId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, shape: &[usize]) -> (String, Vec<usize>) {
        (name.to_owned(), shape.to_vec())
    }

    #[test]
    fn the_parameter_used_last_lies_first_and_there_are_no_gaps() {
        let layout = Layout::new(vec![named("w", &[3, 2]), named("b", &[3])]).unwrap();
        let ranges: Vec<_> =
            layout.params().iter().map(|p| (p.name.as_str(), p.range.clone())).collect();
        assert_eq!(ranges, [("b", 0..3), ("w", 3..9)]);
        assert_eq!((layout.id("w"), layout.id("x"), layout.len()), (Some(ParamId(1)), None, 9));
    }

    #[test]
    fn names_are_unique_and_the_sum_is_bounded() {
        let twice = Layout::new(vec![named("w", &[1]), named("w", &[1])]);
        assert_eq!(twice, Err(LayoutError::Duplicate { name: "w".to_owned() }));
        let huge = Layout::new(vec![named("w", &[usize::MAX, 2])]);
        assert_eq!(huge, Err(LayoutError::TooLarge { limit: MAX_ELEMENTS }));
    }
}
