//! Bytes by digest: chunks, files of chunks, datasets of files.
