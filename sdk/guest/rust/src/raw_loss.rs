//! Losses as numbers.

use std::marker::PhantomData;

use crate::generated::loss_raw::exports::lockstep::guest::loss_raw as exports;
use crate::{Dtype, Error, Output, View, panics};

/// Computes a loss and its gradients itself, on every step: for what a [`crate::Loss`] cannot say.
pub trait RawLoss: 'static {
    /// `outputs` are the model's, f32; `batch` is the loader's, f32 or s64. The answer has one gradient for each
    /// output, the derivative of `sum` by it.
    fn compute(config: &str, outputs: &[View], batch: &[View]) -> Result<Output, Error>;
}

/// A tensor by name.
pub fn find<'a>(views: &'a [View], name: &str) -> Result<&'a View, Error> {
    views.iter().find(|view| view.name == name).ok_or_else(|| {
        let names: Vec<&str> = views.iter().map(|view| view.name.as_str()).collect();
        Error::data(format!("there is no tensor {name:?}; there are {names:?}"))
    })
}

impl View {
    /// Its elements, for a tensor of f32.
    pub fn floats(&self) -> Result<Vec<f32>, Error> {
        self.elements(Dtype::F32, f32::from_le_bytes)
    }

    /// Its elements, for a tensor of s64.
    pub fn integers(&self) -> Result<Vec<i64>, Error> {
        self.elements(Dtype::S64, i64::from_le_bytes)
    }

    fn elements<const N: usize, T>(
        &self,
        expected: Dtype,
        convert: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        if self.dtype != expected {
            let (name, dtype) = (&self.name, self.dtype);
            return Err(Error::data(format!("{name:?} is {dtype:?}, expected {expected:?}")));
        }
        Ok(self.data.as_chunks::<N>().0.iter().map(|&bytes| convert(bytes)).collect())
    }
}

#[doc(hidden)]
pub struct RawLossGuest<L>(PhantomData<L>);

impl<L: RawLoss> exports::Guest for RawLossGuest<L> {
    fn compute(config: String, outputs: Vec<View>, batch: Vec<View>) -> Result<Output, Error> {
        panics::report();
        L::compute(&config, &outputs, &batch)
    }
}

/// Makes a [`RawLoss`] this component's export. Once in a crate of type `cdylib`.
#[macro_export]
macro_rules! export_raw_loss {
    ($loss:ty) => {
        type LockstepRawLossGuest = $crate::RawLossGuest<$loss>;
        $crate::generated::loss_raw::export!(
            LockstepRawLossGuest with_types_in $crate::generated::loss_raw
        );
    };
}
