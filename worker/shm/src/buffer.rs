//! Private memory for numbers of any kind that come over the network.
#![expect(unsafe_code, reason = "lends words as bytes")]

use std::{mem, slice};

/// Bytes that begin where numbers of every kind may.
#[derive(Debug, Clone, Default)]
pub struct Buffer {
    words: Vec<u64>,
    len: usize,
}

impl Buffer {
    /// Makes it `len` bytes long; what was in it, and what is new, has any value.
    pub fn resize(&mut self, len: usize) {
        let words = len.div_ceil(size_of::<u64>());
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        self.len = len;
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes lie in the words, and every byte of a word is a byte.
        unsafe { slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        const { assert!(mem::align_of::<u64>() == 8, "numbers have at most 8 bytes") };
        // SAFETY: as in `bytes`; any bytes make a word, and `&mut self` excludes other borrows.
        unsafe { slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }
}
