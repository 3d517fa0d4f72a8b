//! This process's own floats, and the leases that keep two threads off the same range.
#![expect(unsafe_code, reason = "makes slices of mapped floats, checked against the leases")]

use std::{
    ops::Range,
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{Mapping, page_aligned};

/// How the floats of a mapping are divided: `ranks` × `slots` arenas of `len` floats each, every
/// arena starting on a page of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaShape {
    /// How many ranks have arenas.
    pub ranks: usize,
    /// Arenas of each rank.
    pub slots: usize,
    /// Floats in each arena.
    pub len: usize,
}

impl ArenaShape {
    /// Bytes of one arena, whole pages.
    pub fn arena_bytes(&self) -> usize {
        page_aligned(self.len * size_of::<f32>())
    }

    /// Bytes of all arenas.
    pub fn bytes(&self) -> usize {
        self.ranks * self.slots * self.arena_bytes()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    slots: Range<usize>,
    range: Range<usize>,
}

impl Held {
    fn overlaps(&self, slot: usize, range: &Range<usize>) -> bool {
        self.slots.contains(&slot) && self.range.start < range.end && range.start < self.range.end
    }
}

pub(crate) type Leases = Arc<Mutex<Vec<Held>>>;

/// The arenas of one rank, as the thread that computes sees them.
#[derive(Debug)]
pub struct OwnArena {
    pub(crate) map: Arc<Mapping>,
    pub(crate) shape: ArenaShape,
    pub(crate) own: usize,
    pub(crate) leases: Leases,
}

impl OwnArena {
    pub(crate) fn new(map: Arc<Mapping>, shape: ArenaShape, own: usize) -> Self {
        Self { map, shape, own, leases: Leases::default() }
    }

    /// How the mapping is divided.
    pub fn shape(&self) -> ArenaShape {
        self.shape
    }

    /// Floats `range` of arena `slot`.
    ///
    /// # Panics
    /// If the range is out of bounds, or any of it is leased.
    pub fn floats(&self, slot: usize, range: Range<usize>) -> &[f32] {
        let first = self.checked(slot, &range);
        // SAFETY: in bounds, not leased (`checked`), and `lease` and the mutable borrows take
        // `&mut self`, so nothing writes there while this borrow lives.
        unsafe { slice::from_raw_parts(first, range.len()) }
    }

    /// Floats `range` of arena `slot`, to be written.
    ///
    /// # Panics
    /// If the range is out of bounds, or any of it is leased.
    pub fn floats_mut(&mut self, slot: usize, range: Range<usize>) -> &mut [f32] {
        let first = self.checked(slot, &range);
        // SAFETY: in bounds, not leased (`checked`), and `&mut self` excludes every other borrow
        // and every new lease while this one lives.
        unsafe { slice::from_raw_parts_mut(first, range.len()) }
    }

    /// The numbers of arena 0 from float `first` on, seen as f64.
    ///
    /// # Panics
    /// If `first` is odd, or [`OwnArena::floats_mut`] would.
    pub fn doubles_mut(&mut self, first: usize, len: usize) -> &mut [f64] {
        assert!(first.is_multiple_of(2), "an f64 at float {first} is not aligned");
        assert!(len <= self.shape.len, "{len} f64 of {} floats", self.shape.len);
        let start = self.checked(0, &(first..first.saturating_add(2 * len)));
        // SAFETY: as in `floats_mut`; arenas begin on pages, so an even float is aligned, and any bits
        // are an f64.
        unsafe { slice::from_raw_parts_mut(start.cast(), len) }
    }

    /// `into += from` over `range` of two arenas.
    ///
    /// # Panics
    /// If it is one arena, the range is out of bounds, or any of it is leased.
    pub fn add(&mut self, into: usize, from: usize, range: Range<usize>) {
        let (right, left) = self.two(from, into, range);
        for (left, right) in left.iter_mut().zip(right) {
            *left += *right;
        }
    }

    /// Floats `range` of two arenas, the second's to be written.
    ///
    /// # Panics
    /// If it is one arena, the range is out of bounds, or any of it is leased.
    pub fn two(&mut self, from: usize, into: usize, range: Range<usize>) -> (&[f32], &mut [f32]) {
        assert!(into != from, "arena {into} cannot be both");
        let left = self.checked(into, &range);
        let right = self.checked(from, &range);
        // SAFETY: both in bounds and not leased; different arenas never overlap, and `&mut self`
        // excludes other borrows.
        unsafe {
            (
                slice::from_raw_parts(right, range.len()),
                slice::from_raw_parts_mut(left, range.len()),
            )
        }
    }

    /// Takes `range` of the arenas `slots` out of use until the lease is dropped. It is for the first lane.
    ///
    /// # Panics
    /// If the range is out of bounds, or any of it is leased already.
    pub fn lease(&mut self, slots: Range<usize>, range: Range<usize>) -> Lease {
        self.lease_for(0, slots, range)
    }

    /// [`OwnArena::lease`] for another lane.
    ///
    /// # Panics
    /// As [`OwnArena::lease`].
    pub fn lease_for(&mut self, lane: usize, slots: Range<usize>, range: Range<usize>) -> Lease {
        for slot in slots.clone() {
            self.checked(slot, &range);
        }
        let held = Held { slots, range };
        locked(&self.leases).push(held.clone());
        Lease { held, lane, leases: Arc::clone(&self.leases) }
    }

    fn checked(&self, slot: usize, range: &Range<usize>) -> *mut f32 {
        assert!(
            range.start <= range.end && range.end <= self.shape.len,
            "floats {range:?} of an arena of {}",
            self.shape.len
        );
        let leased = locked(&self.leases).iter().any(|held| held.overlaps(slot, range));
        assert!(!leased, "floats {range:?} of arena {slot} are leased to the communication thread");
        // SAFETY: `range.start` is inside the arena, as just checked.
        unsafe { self.map.floats(self.shape, self.own, slot).add(range.start) }
    }
}

/// A range of a rank's own arenas that is in use by a collective. Dropping it gives the range back.
#[derive(Debug)]
pub struct Lease {
    held: Held,
    pub(crate) lane: usize,
    pub(crate) leases: Leases,
}

impl Lease {
    /// The arenas it covers.
    pub fn slots(&self) -> Range<usize> {
        self.held.slots.clone()
    }

    /// The floats it covers in each of them.
    pub fn range(&self) -> Range<usize> {
        self.held.range.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut leases = locked(&self.leases);
        if let Some(index) = leases.iter().position(|held| *held == self.held) {
            leases.swap_remove(index);
        }
    }
}

/// The list is valid between any two statements, so a panic elsewhere does not spoil it.
fn locked(leases: &Mutex<Vec<Held>>) -> std::sync::MutexGuard<'_, Vec<Held>> {
    leases.lock().unwrap_or_else(PoisonError::into_inner)
}
