//! A shared mapping of a file: words as atomics, floats by [`crate::OwnArena`] and
//! [`crate::NodeArenas`].
#![expect(unsafe_code, reason = "maps pages and makes atomics of them; nothing else can")]

use std::{
    ffi::c_void,
    io,
    os::fd::AsFd,
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::{
    fs::fstat,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use crate::{ArenaShape, NodeArenas, OwnArena};

/// Everything that is laid out in a mapping starts at a multiple of this.
pub const PAGE_BYTES: usize = 4096;

/// `bytes`, rounded up to whole pages.
pub fn page_aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// Pages of a file, shared with whoever else maps it.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Offsets below this are words, the rest is floats.
    words_bytes: usize,
    floats_taken: AtomicBool,
}

// SAFETY: the pages live until `drop`, whoever holds the value. Words are reached as atomics only,
// floats through `OwnArena` and `NodeArenas`, which keep their own rules (crate documentation).
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out nothing but atomics and, once, the floats.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `fd`, readable and writable. The first `words_bytes` are words.
    ///
    /// # Errors
    /// When the file is shorter than `bytes`, or the system refuses.
    ///
    /// # Panics
    /// If `bytes` is 0, or `words_bytes` is above it or not a whole number of pages.
    pub fn of_file(fd: impl AsFd, bytes: usize, words_bytes: usize) -> io::Result<Self> {
        Self::of_part(fd, 0, bytes, words_bytes)
    }

    /// Maps `bytes` of `fd` from byte `first` on, readable and writable. The first `words_bytes` of them are words.
    ///
    /// # Errors
    /// As [`Mapping::of_file`].
    ///
    /// # Panics
    /// As [`Mapping::of_file`]; and if `first` is not a whole number of pages.
    pub fn of_part(
        fd: impl AsFd,
        first: usize,
        bytes: usize,
        words_bytes: usize,
    ) -> io::Result<Self> {
        assert!(0 < bytes && words_bytes <= bytes, "{words_bytes} of {bytes} bytes are words");
        let is_paged = words_bytes.is_multiple_of(PAGE_BYTES) && first.is_multiple_of(PAGE_BYTES);
        assert!(is_paged, "{words_bytes} from {first} on are not whole pages");
        let found = fstat(&fd)?.st_size;
        if usize::try_from(found).is_ok_and(|found| found < first.saturating_add(bytes)) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file has {found} bytes, {bytes} from {first} on are to be mapped"),
            ));
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                first as u64,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, bytes, words_bytes, floats_taken: AtomicBool::new(false) })
    }

    /// How many bytes are mapped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The 32-bit word at byte `offset`.
    ///
    /// # Panics
    /// If it does not lie in the words, aligned.
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        let word = self.word(offset, 4).cast::<u32>();
        // SAFETY: `word` checked bounds and alignment; words are only touched as atomics, and the
        // pages outlive the borrow of `self`.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// The 64-bit word at byte `offset`.
    ///
    /// # Panics
    /// If it does not lie in the words, aligned.
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        let word = self.word(offset, 8).cast::<u64>();
        // SAFETY: as in `u32_at`.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Stores `octets` from byte `offset` on. Visible to others with the next release store.
    ///
    /// # Panics
    /// If they do not fit into the words.
    pub fn store_octets(&self, offset: usize, octets: &[u8]) {
        for (index, octet) in octets.iter().enumerate() {
            self.u8_at(offset + index).store(*octet, Ordering::Relaxed);
        }
    }

    /// Loads `len` octets from byte `offset` on.
    ///
    /// # Panics
    /// If they do not lie in the words.
    pub fn load_octets(&self, offset: usize, len: usize) -> Vec<u8> {
        (offset..offset + len).map(|at| self.u8_at(at).load(Ordering::Relaxed)).collect()
    }

    /// Hands out the floats behind the words: those of rank `own`, and as many ways to sum all as there are `lanes`, for
    /// as many threads. A lease is for one of them.
    ///
    /// # Errors
    /// When they were taken before.
    ///
    /// # Panics
    /// If `shape` does not fit into the mapping, or `own` is not one of its ranks.
    pub fn take_floats(
        self: &Arc<Self>,
        shape: ArenaShape,
        own: usize,
        lanes: usize,
    ) -> io::Result<(OwnArena, Vec<NodeArenas>)> {
        assert!(own < shape.ranks, "rank {own} of {}", shape.ranks);
        let needed = self.words_bytes + shape.bytes();
        assert!(needed <= self.bytes, "{shape:?} needs {needed} bytes of {}", self.bytes);
        if self.floats_taken.swap(true, Ordering::AcqRel) {
            return Err(io::Error::other("the floats of this mapping are already taken"));
        }
        let arena = OwnArena::new(Arc::clone(self), shape, own);
        let lanes = (0..lanes).map(|lane| NodeArenas::new(&arena, lane)).collect();
        Ok((arena, lanes))
    }

    /// The first float of the arena of (`rank`, `slot`), for [`OwnArena`] and [`NodeArenas`] only.
    pub(crate) fn floats(&self, shape: ArenaShape, rank: usize, slot: usize) -> *mut f32 {
        assert!(rank < shape.ranks && slot < shape.slots, "({rank}, {slot}) of {shape:?}");
        let offset = self.words_bytes + (rank * shape.slots + slot) * shape.arena_bytes();
        // SAFETY: `take_floats` checked that all arenas of `shape` lie in the mapping.
        unsafe { self.base.as_ptr().add(offset).cast::<f32>() }
    }

    fn u8_at(&self, offset: usize) -> &AtomicU8 {
        let word = self.word(offset, 1);
        // SAFETY: as in `u32_at`; the callers keep octets and wider words in different places.
        unsafe { AtomicU8::from_ptr(word) }
    }

    fn word(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.words_bytes);
        assert!(fits, "word at {offset}, words end at {}", self.words_bytes);
        assert!(offset.is_multiple_of(bytes), "word of {bytes} bytes at {offset}");
        // SAFETY: inside the mapping, as just checked; the base is page aligned.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are those of `mmap`, and every borrow of the pages holds the
        // mapping by reference or by `Arc`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of {} bytes: {unmapped:?}", self.bytes);
    }
}
