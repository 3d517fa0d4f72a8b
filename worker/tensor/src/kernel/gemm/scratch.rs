//! Memory for packed panels, kept from product to product.
#![expect(unsafe_code, reason = "lends lines of a cache as floats")]

use std::{cell::RefCell, slice};

use crate::real::Real;

/// A line of the cache, so that panels begin at one.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct Line([u8; 64]);

/// The scratch of one thread's share of a product.
#[derive(Debug, Default)]
pub(crate) struct Part {
    lines: Vec<Line>,
}

impl Part {
    /// Two pieces of at least these lengths, each at the beginning of a line, with whatever is left in them.
    pub(crate) fn lend<T: Real>(&mut self, first: usize, second: usize) -> (&mut [T], &mut [T]) {
        let lines = |len: usize| (len * size_of::<T>()).div_ceil(size_of::<Line>());
        let (first_lines, second_lines) = (lines(first), lines(second));
        if self.lines.len() < first_lines + second_lines {
            self.lines.resize(first_lines + second_lines, Line([0; 64]));
        }
        let (left, right) = self.lines.split_at_mut(first_lines);
        (floats(left, first), floats(right, second))
    }
}

fn floats<T: Real>(lines: &mut [Line], len: usize) -> &mut [T] {
    debug_assert!(len * size_of::<T>() <= size_of_val(lines));
    // SAFETY: the lines are initialised, hold `len` floats, are aligned for any float, and any
    // bytes are a float. The borrow of the lines is passed on.
    unsafe { slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<T>(), len) }
}

/// Scratch of products: grows to what the largest asked for and is then used again without allocation.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    parts: Vec<Part>,
    operands: Part,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// One part for each share of the work.
    pub(crate) fn parts(&mut self, count: usize) -> &mut [Part] {
        if self.parts.len() < count {
            self.parts.resize_with(count, Part::default);
        }
        &mut self.parts[..count]
    }

    /// Runs something with memory for operands that are laid out anew, beside the scratch for the products of
    /// them.
    pub(crate) fn with_operands<R>(&mut self, work: impl FnOnce(&mut Part, &mut Self) -> R) -> R {
        let mut operands = std::mem::take(&mut self.operands);
        let result = work(&mut operands, self);
        self.operands = operands;
        result
    }

    /// The calling thread's own. Where it is in use already, by a product within a product, a fresh one.
    pub(crate) fn with_local<R>(work: impl FnOnce(&mut Self) -> R) -> R {
        thread_local! {
            static LOCAL: RefCell<Scratch> = const {
                RefCell::new(Scratch { parts: Vec::new(), operands: Part { lines: Vec::new() } })
            };
        }
        LOCAL.with(|local| match local.try_borrow_mut() {
            Ok(mut scratch) => work(&mut scratch),
            Err(_) => work(&mut Self::new()),
        })
    }
}

#[cfg(test)]
impl Scratch {
    /// All that is held.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.parts.iter().chain([&self.operands]);
        parts.map(|part| part.lines.capacity() * size_of::<Line>()).sum()
    }
}
