//! What one guest may use, and the counter of its memory.

use std::time::Duration;

/// Ceilings of one guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory of all its modules together, bytes.
    pub memory_bytes: u64,
    /// Time of one call.
    pub call_time: Duration,
    /// Bytes one call may hand out, counted as the host stores them (elements are widened to f32 or i64).
    pub output_bytes: u64,
}

/// Stack of a guest's own frames. The thread that calls needs so much and some more.
pub(crate) const STACK_BYTES: usize = 1 << 20;

/// Live handles (files, tensors, readers) of one guest.
pub(crate) const HANDLES_CAP: usize = 4096;

/// Elements of all function tables of a guest together.
const TABLE_ELEMENTS_CAP: usize = 1 << 20;

/// Core instances, tables and memories of one guest.
const PARTS_CAP: usize = 64;

/// The next allocation would pass the limit. Travels through wasmtime as the trap's cause.
#[derive(Debug, thiserror::Error)]
#[error("the guest asked for {asked} bytes of memory, its limit is {limit}")]
pub(crate) struct MemoryDenied {
    pub(crate) asked: u64,
    pub(crate) limit: u64,
}

/// Counts memory and tables of one store.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: u64,
    memory: u64,
    table_elements: usize,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { limit: limits.memory_bytes, memory: 0, table_elements: 0 }
    }
}

impl wasmtime::ResourceLimiter for Limiter {
    /// An error instead of `false`: the guest would only see an allocation fail and trap without a reason.
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| maximum < desired) {
            return Ok(false);
        }
        let asked = self.memory.saturating_add(desired.saturating_sub(current) as u64);
        if self.limit < asked {
            return Err(MemoryDenied { asked, limit: self.limit }.into());
        }
        self.memory = asked;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| maximum < desired) {
            return Ok(false);
        }
        let asked = self.table_elements.saturating_add(desired.saturating_sub(current));
        if TABLE_ELEMENTS_CAP < asked {
            return Ok(false);
        }
        self.table_elements = asked;
        Ok(true)
    }

    fn instances(&self) -> usize {
        PARTS_CAP
    }

    fn tables(&self) -> usize {
        PARTS_CAP
    }

    fn memories(&self) -> usize {
        PARTS_CAP
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::ResourceLimiter as _;

    use super::*;

    #[test]
    fn memories_count_together_and_the_refusal_says_how_much_was_asked() {
        let limits =
            Limits { memory_bytes: 1000, call_time: Duration::from_secs(1), output_bytes: 1 };
        let mut limiter = Limiter::new(&limits);
        assert!(limiter.memory_growing(0, 600, None).unwrap());
        assert!(limiter.memory_growing(600, 700, None).unwrap());
        let error = limiter.memory_growing(0, 301, None).unwrap_err();
        let denied = error.downcast_ref::<MemoryDenied>().unwrap();
        assert_eq!((denied.asked, denied.limit), (1001, 1000));
        assert!(limiter.memory_growing(0, 300, None).unwrap());
    }
}
