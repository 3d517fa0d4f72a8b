//! IDX files: two zero bytes, the element type (8: unsigned byte), the number of axes, each axis' length as a
//! big-endian u32, then the elements, row-major. Source: <https://github.com/zalandoresearch/fashion-mnist> and the
//! description of the MNIST files that it follows.

use lockstep_guest::{Error, dataset};

/// The element type of unsigned bytes.
const UNSIGNED_BYTE: u8 = 8;

/// The first two bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file of unsigned bytes with so many axes.
pub(crate) struct IdxFile<const AXES: usize> {
    name: String,
    shape: [usize; AXES],
    file: dataset::Object,
}

impl<const AXES: usize> IdxFile<AXES> {
    /// Opens a file of the dataset and checks its header against its size.
    pub(crate) fn open(name: &str) -> Result<Self, Error> {
        let file = dataset::open(name)?;
        let header = file.read(0, Self::HEADER as u32)?;
        let wrong = |what: String| Error::data(format!("{name}: {what}"));
        if header.starts_with(&GZIP) {
            return Err(wrong("compressed by gzip, expected a plain IDX file".to_owned()));
        }
        if header.len() < Self::HEADER {
            return Err(wrong(format!("{} bytes, too short for an IDX header", header.len())));
        }
        let (magic, lengths) = header.split_at(4);
        let expected = [0, 0, UNSIGNED_BYTE, AXES as u8];
        if magic != expected {
            return Err(wrong(format!(
                "begins with {magic:?}, expected {expected:?} (IDX, unsigned bytes, axes: {AXES})"
            )));
        }
        let mut shape = [0; AXES];
        for (length, bytes) in shape.iter_mut().zip(lengths.chunks_exact(4)) {
            *length = bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte));
        }
        let elements = shape.iter().try_fold(1_u64, |all, &length| all.checked_mul(length as u64));
        let size = elements.and_then(|elements| elements.checked_add(Self::HEADER as u64));
        if size != Some(file.size()) {
            let found = file.size();
            return Err(wrong(format!(
                "{found} bytes, which is not what its shape {shape:?} takes"
            )));
        }
        Ok(Self { name: name.to_owned(), shape, file })
    }

    /// Bytes before the elements.
    const HEADER: usize = 4 + 4 * AXES;

    /// Its path in the dataset.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Length of each axis.
    pub(crate) fn shape(&self) -> [usize; AXES] {
        self.shape
    }

    /// `count` elements from the `first`. Fewer are an error.
    pub(crate) fn elements(&self, first: usize, count: usize) -> Result<Vec<u8>, Error> {
        let elements = self.file.read((Self::HEADER + first) as u64, count as u32)?;
        if elements.len() != count {
            let name = &self.name;
            return Err(Error::data(format!("{name}: ends within elements {first} + {count}")));
        }
        Ok(elements)
    }
}
