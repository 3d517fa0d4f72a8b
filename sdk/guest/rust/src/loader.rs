//! Loaders.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::generated::loader::exports::lockstep::guest::loader as exports;
use crate::generated::loader::lockstep::guest::{batch, dataset};
use crate::{Dtype, Error, Request, panics};

/// Bytes of one read; the host refuses more than 16 MiB.
const READ_BYTES: u32 = 4 << 20;

/// Files asked for at once.
const LIST_FILES: u32 = 1000;

/// Makes tensors of samples: the service says which.
pub trait Loader: Sized + 'static {
    /// `config` is the job's JSON (see [`crate::config`]), `split` is `train` or `eval`.
    fn open(config: &str, split: &str) -> Result<Self, Error>;

    /// Number of samples of the split. It must not change.
    fn len(&self) -> u64;

    /// [`put`]s the batch's tensors; the first axis of each counts `request.indices`. Whatever is random
    /// depends on `request.seeds` alone, so that a job can be repeated.
    fn load(&mut self, request: &Request) -> Result<(), Error>;
}

/// A number that a tensor can be made of.
pub trait Element: bytemuck::NoUninit {
    /// What the host calls it.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),+) => {
        $(impl Element for $ty {
            const DTYPE: Dtype = Dtype::$dtype;
        })+
    };
}

elements!(u8 => U8, i8 => S8, u16 => U16, i16 => S16, u32 => U32, i32 => S32, u64 => U64, i64 => S64, f32 => F32, f64 => F64, bool => Boolean);

/// Adds a tensor to the batch being loaded.
pub fn put<T: Element>(name: &str, shape: &[u32], elements: &[T]) -> Result<(), Error> {
    batch::put(name, T::DTYPE, shape, bytemuck::cast_slice(elements))
}

/// Adds a tensor that is bytes already, little-endian: f16 and bf16, or straight from a file.
pub fn put_bytes(name: &str, dtype: Dtype, shape: &[u32], bytes: &[u8]) -> Result<(), Error> {
    batch::put(name, dtype, shape, bytes)
}

/// A whole file of the dataset.
pub fn read_file(path: &str) -> Result<Vec<u8>, Error> {
    let file = dataset::open(path)?;
    let mut bytes = Vec::with_capacity(file.size() as usize);
    loop {
        let piece = file.read(bytes.len() as u64, READ_BYTES)?;
        if piece.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
}

/// Paths and sizes of all files of the dataset, in the order of their paths.
pub fn files() -> Result<Vec<dataset::Entry>, Error> {
    let mut files: Vec<dataset::Entry> = Vec::new();
    loop {
        let last = files.last().map(|entry| entry.path.as_str());
        let more = dataset::list(last, LIST_FILES)?;
        if more.is_empty() {
            return Ok(files);
        }
        files.extend(more);
    }
}

#[doc(hidden)]
pub struct LoaderGuest<L>(PhantomData<L>);

#[doc(hidden)]
pub struct Reader<L>(RefCell<L>);

impl<L: Loader> exports::Guest for LoaderGuest<L> {
    type Reader = Reader<L>;

    fn open(config: String, split: String) -> Result<exports::Reader, Error> {
        panics::report();
        let loader = L::open(&config, &split)?;
        Ok(exports::Reader::new(Reader(RefCell::new(loader))))
    }
}

impl<L: Loader> exports::GuestReader for Reader<L> {
    fn len(&self) -> u64 {
        self.0.borrow().len()
    }

    fn load(&self, request: Request) -> Result<(), Error> {
        self.0.borrow_mut().load(&request)
    }
}

/// Makes a [`Loader`] this component's export. Once in a crate of type `cdylib`.
#[macro_export]
macro_rules! export_loader {
    ($loader:ty) => {
        type LockstepLoaderGuest = $crate::LoaderGuest<$loader>;
        $crate::generated::loader::export!(
            LockstepLoaderGuest with_types_in $crate::generated::loader
        );
    };
}
