//! The two ways in which a file becomes memory here. Both trust that nothing changes the file while it
//! is mapped, which no signature can say; so they stand alone, and who may write those files is written down.
#![expect(unsafe_code, reason = "mapping files: compiled code, and datasets")]

use std::fs::File;

use camino::Utf8Path;
use memmap2::Mmap;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Loads machine code that [`crate::cache`] wrote.
///
/// The caller has made sure that the folder belongs to this user and that nobody else may write there.
pub(crate) fn load_compiled(engine: &Engine, path: &Utf8Path) -> wasmtime::Result<Component> {
    // SAFETY: `deserialize_file` requires that the file is an unmodified result of `serialize` and stays
    // so while it is mapped. `Cache` writes such files only by renaming complete ones into a folder that
    // only this user can write (`Cache::open` checks owner and mode), under a name with the hash of
    // engine and component, and never changes one afterwards; removal leaves a mapping intact.
    unsafe { Component::deserialize_file(engine, path) }
}

/// Maps a file of a dataset, read-only.
pub(crate) fn map(path: &Utf8Path) -> std::io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: `Mmap::map` requires that the file is not changed or cut while it is mapped. Files of a
    // dataset are content-addressed: whoever lays them out (the agent, or the server for its check)
    // writes them under a temporary name, checks the digest, renames, and never writes to them again;
    // guests can only read. The bytes themselves are untrusted and only ever copied.
    unsafe { Mmap::map(&file) }
}
