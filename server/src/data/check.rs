//! What manifests must satisfy. Pure.

use std::collections::HashSet;

use lockstep_api::{CHUNK_BYTES, DatasetFile, Digest, FieldError, FileManifest, RegisterDataset};

/// Digests of one question.
pub(crate) const MAX_ASKED: usize = 4096;
/// Chunks of one file: 8 GiB, which Postgres reads back in about half a minute.
pub(crate) const MAX_FILE_CHUNKS: usize = 2048;
/// Files of one dataset.
pub(crate) const MAX_DATASET_FILES: usize = 10_000;
/// Bytes of a path within a dataset.
pub(crate) const MAX_PATH_BYTES: usize = 512;
/// Bytes of one part of a path: what file systems allow.
const MAX_PATH_PART_BYTES: usize = 255;
/// Bytes of a dataset's name.
pub(crate) const MAX_NAME_BYTES: usize = 100;

/// A question about digests.
pub(crate) fn asked(digests: &[Digest]) -> Result<(), FieldError> {
    if digests.len() <= MAX_ASKED {
        return Ok(());
    }
    Err(FieldError::new("digests", format!("expected at most {MAX_ASKED}, got {}", digests.len())))
}

/// Whether size and number of chunks of a manifest agree. Whether they are true, [`super::readback`] finds out.
pub(crate) fn manifest(file: &FileManifest) -> Result<(), FieldError> {
    if MAX_FILE_CHUNKS < file.chunks.len() {
        let message = format!("expected at most {MAX_FILE_CHUNKS}, got {}", file.chunks.len());
        return Err(FieldError::new("chunks", message));
    }
    let needed = usize::try_from(file.size_bytes).ok().map(|size| size.div_ceil(CHUNK_BYTES));
    if needed != Some(file.chunks.len()) {
        let message = format!(
            "expected the length of {} chunks of {CHUNK_BYTES} bytes, the last of which may be shorter, got {}",
            file.chunks.len(),
            file.size_bytes
        );
        return Err(FieldError::new("size_bytes", message));
    }
    Ok(())
}

/// The length that chunk `index` of a checked manifest must have.
pub(crate) fn chunk_bytes(file: &FileManifest, index: usize) -> usize {
    let before = index * CHUNK_BYTES;
    usize::try_from(file.size_bytes).unwrap_or(0).saturating_sub(before).min(CHUNK_BYTES)
}

/// Everything that can be said of a dataset without the database.
pub(crate) fn dataset(request: &RegisterDataset) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(Err(error)) = request.name.as_deref().map(name) {
        errors.push(error);
    }
    if !(1..=MAX_DATASET_FILES).contains(&request.files.len()) {
        let message =
            format!("expected 1 to {MAX_DATASET_FILES} files, got {}", request.files.len());
        errors.push(FieldError::new("files", message));
        return errors;
    }
    let mut seen = HashSet::new();
    for (index, file) in request.files.iter().enumerate() {
        let field = format!("files[{index}].path");
        if let Err(message) = path(&file.path) {
            errors.push(FieldError::new(field, message));
        } else if !seen.insert(file.path.as_str()) {
            errors.push(FieldError::new(field, format!("{:?} comes twice", file.path)));
        }
    }
    if let Some((index, folder)) = file_that_is_a_folder(&request.files, &seen) {
        let message = format!("{folder:?} is a file of this dataset, it cannot be a folder too");
        errors.push(FieldError::new(format!("files[{index}].path"), message));
    }
    errors.truncate(MAX_ERRORS);
    errors
}

/// More than this many errors help nobody.
const MAX_ERRORS: usize = 20;

fn file_that_is_a_folder<'a>(
    files: &'a [DatasetFile],
    seen: &HashSet<&str>,
) -> Option<(usize, &'a str)> {
    files.iter().enumerate().find_map(|(index, file)| {
        let folders = file.path.match_indices('/').map(|(end, _)| &file.path[..end]);
        folders.into_iter().find(|folder| seen.contains(folder)).map(|folder| (index, folder))
    })
}

fn path(path: &str) -> Result<(), String> {
    if !(1..=MAX_PATH_BYTES).contains(&path.len()) {
        return Err(format!("expected 1 to {MAX_PATH_BYTES} bytes, got {}", path.len()));
    }
    if path.contains(|character: char| character.is_control() || character == '\\') {
        return Err(format!("expected no control characters and no backslash, got {path:?}"));
    }
    for part in path.split('/') {
        if matches!(part, "" | "." | "..") {
            return Err(format!(
                "expected a relative path without empty parts, `.` or `..`, got {path:?}"
            ));
        }
        if MAX_PATH_PART_BYTES < part.len() {
            return Err(format!(
                "expected parts of at most {MAX_PATH_PART_BYTES} bytes, got {}",
                part.len()
            ));
        }
    }
    Ok(())
}

/// A dataset's name: words of letters, digits, `.`, `_` and `-` with slashes between.
fn name(name: &str) -> Result<(), FieldError> {
    let is_word = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_alphanumeric())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.split('/').all(is_word) {
        return Ok(());
    }
    let message = format!(
        "expected 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_`, `-`, with `/` between words, got {name:?}"
    );
    Err(FieldError::new("name", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> DatasetFile {
        DatasetFile { path: path.to_owned(), file: Digest::of(b""), size_bytes: 0 }
    }

    fn errors_of(paths: &[&str]) -> Vec<String> {
        let files = paths.iter().map(|path| file(path)).collect();
        dataset(&RegisterDataset { name: None, files })
            .into_iter()
            .map(|error| error.field)
            .collect()
    }

    #[test]
    fn paths_that_leave_the_folder_or_collide_are_refused() {
        assert_eq!(errors_of(&["a", "b/c", "b/d.csv"]), [""; 0]);
        let long = "x".repeat(256);
        for bad in ["", "/a", "a//b", "../a", "a/./b", "a/..", "a\0", "a\\b", "a/", &long] {
            assert_eq!(errors_of(&["ok", bad]), ["files[1].path"], "{bad:?}");
        }
        assert_eq!(errors_of(&["a", "a"]), ["files[1].path"]);
        assert_eq!(errors_of(&["a/b/c", "a/b"]), ["files[0].path"]);
        assert_eq!(errors_of(&[]), ["files"]);
    }

    #[test]
    fn names_cannot_be_taken_for_digests_or_paths() {
        for good in ["digits/train", "a", "Digits-2026_v1.0"] {
            assert_eq!(name(good), Ok(()), "{good}");
        }
        let long = "x".repeat(101);
        for bad in ["", "/a", "a/", "./a", "../a", "sha256:00", "a b", "ä", &long] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_manifest_has_as_many_chunks_as_its_length_needs() {
        let chunks = |count| vec![Digest::of(b"x"); count];
        let of = |size_bytes, count| FileManifest {
            digest: Digest::of(b"y"),
            size_bytes,
            chunks: chunks(count),
        };
        let chunk = i64::try_from(CHUNK_BYTES).unwrap();
        for (size, count) in [(0, 0), (1, 1), (chunk, 1), (chunk + 1, 2)] {
            assert_eq!(manifest(&of(size, count)), Ok(()), "{size}");
        }
        for (size, count) in [(0, 1), (1, 0), (chunk, 2), (chunk + 1, 1), (-1, 0), (i64::MAX, 1)] {
            assert_eq!(manifest(&of(size, count)).unwrap_err().field, "size_bytes", "{size}");
        }
        assert_eq!(manifest(&of(chunk * 2049, 2049)).unwrap_err().field, "chunks");
        let file = of(chunk + 5, 2);
        assert_eq!((chunk_bytes(&file, 0), chunk_bytes(&file, 1)), (CHUNK_BYTES, 5));
    }
}
