//! `batch`: where a loader puts tensors. Bytes are read in the guest's memory and copied once.

use wasmtime::StoreContextMut;
use wasmtime::component::{LinkerInstance, WasmList};

use super::{GuestState, check_name};
use crate::bindings::types::{self, Dtype};
use crate::error::GuestError;
use crate::limits::Limits;

/// Tensors of one batch.
const TENSORS_CAP: usize = 64;

/// Axes of one tensor.
const AXES_CAP: usize = 8;

/// What a loader made of some samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// In the order in which they were put; names are unique.
    pub tensors: Vec<BatchTensor>,
}

/// One tensor of a batch, row-major; the first axis counts samples.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchTensor {
    /// What the loss finds it by.
    pub name: String,
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: BatchData,
}

/// Elements, widened: floats to f32 (f64 is rounded), integers and booleans to i64.
#[derive(Debug, Clone, PartialEq)]
pub enum BatchData {
    /// Floats.
    F32(Vec<f32>),
    /// Integers and booleans.
    I64(Vec<i64>),
}

/// The batch being filled.
pub(crate) struct BatchBuilder {
    what: &'static str,
    samples: usize,
    limit: u64,
    put_bytes: u64,
    tensors: Vec<BatchTensor>,
}

impl BatchBuilder {
    pub(crate) fn new(what: &'static str, samples: usize, limits: &Limits) -> Self {
        Self { what, samples, limit: limits.output_bytes, put_bytes: 0, tensors: Vec::new() }
    }

    pub(crate) fn finish(self) -> Result<Batch, GuestError> {
        if self.tensors.is_empty() {
            return Err(self.shape("the batch", "at least one tensor", "empty"));
        }
        Ok(Batch { tensors: self.tensors })
    }

    /// Takes one tensor, everything checked.
    fn put(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: &[u32],
        bytes: &[u8],
    ) -> Result<(), GuestError> {
        check_name(self.what, "a tensor's name", &name)?;
        let subject = format!("tensor {name:?}");
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(self.shape(&subject, "put once", "put twice"));
        }
        if TENSORS_CAP <= self.tensors.len() {
            let expected = format!("one of at most {TENSORS_CAP}");
            return Err(self.shape(&subject, &expected, "one more"));
        }
        let shape = self.check_shape(&subject, dtype, shape, bytes.len())?;
        self.count(dtype, &shape)?;
        let data = widen(dtype, bytes).map_err(|(expected, got)| {
            let subject = format!("an element of {subject}");
            self.shape(&subject, expected, &got)
        })?;
        self.tensors.push(BatchTensor { name, shape, data });
        Ok(())
    }

    fn check_shape(
        &self,
        subject: &str,
        dtype: Dtype,
        shape: &[u32],
        given: usize,
    ) -> Result<Vec<usize>, GuestError> {
        if !(1..=AXES_CAP).contains(&shape.len()) {
            let expected = format!("of 1 to {AXES_CAP} axes");
            return Err(self.shape(subject, &expected, &format!("of {}", shape.len())));
        }
        let shape: Vec<usize> = shape.iter().map(|&axis| axis as usize).collect();
        if shape[0] != self.samples {
            let expected = format!("[{}, ..]: one row a sample", self.samples);
            return Err(self.shape(subject, &expected, &format!("{shape:?}")));
        }
        let needed = shape.iter().try_fold(element_bytes(dtype), |n, &axis| n.checked_mul(axis));
        if needed != Some(given) {
            let expected = match needed {
                Some(needed) => format!("{needed} bytes for {dtype:?} {shape:?}"),
                None => format!("of a shape that exists, unlike {shape:?}"),
            };
            return Err(self.shape(subject, &expected, &format!("{given} bytes")));
        }
        Ok(shape)
    }

    fn count(&mut self, dtype: Dtype, shape: &[usize]) -> Result<(), GuestError> {
        let widened = if is_float(dtype) { size_of::<f32>() } else { size_of::<i64>() };
        let bytes = shape.iter().product::<usize>() as u64 * widened as u64;
        let asked = self.put_bytes.saturating_add(bytes);
        if self.limit < asked {
            let what = self.what.to_owned();
            return Err(GuestError::OutputLimit { what, asked: Some(asked), limit: self.limit });
        }
        self.put_bytes = asked;
        Ok(())
    }

    fn shape(&self, subject: &str, expected: &str, got: &str) -> GuestError {
        GuestError::Shape {
            what: self.what.to_owned(),
            subject: subject.to_owned(),
            expected: expected.to_owned(),
            got: got.to_owned(),
        }
    }
}

/// Defines `batch`. By hand, since the generated form would copy every tensor once more on its way in.
pub(crate) fn add_to_linker(mut batch: LinkerInstance<'_, GuestState>) -> wasmtime::Result<()> {
    type Put = (String, Dtype, Vec<u32>, WasmList<u8>);
    batch.func_wrap(
        "put",
        |mut store: StoreContextMut<'_, GuestState>, (name, dtype, shape, data): Put| {
            // Taken out for the time of the call: the guest's memory is borrowed from the same store.
            let Some(mut builder) = store.data_mut().batch.take() else {
                let message = "batch.put is for loader.load only".to_owned();
                return Ok((Err(types::Error::Internal(message)),));
            };
            builder.put(name, dtype, &shape, data.as_le_slice(&store))?;
            store.data_mut().batch = Some(builder);
            Ok((Ok(()),))
        },
    )
}

fn element_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::U8 | Dtype::S8 | Dtype::Boolean => 1,
        Dtype::U16 | Dtype::S16 | Dtype::F16 | Dtype::Bf16 => 2,
        Dtype::U32 | Dtype::S32 | Dtype::F32 => 4,
        Dtype::U64 | Dtype::S64 | Dtype::F64 => 8,
    }
}

fn is_float(dtype: Dtype) -> bool {
    match dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => true,
        Dtype::U8
        | Dtype::S8
        | Dtype::U16
        | Dtype::S16
        | Dtype::U32
        | Dtype::S32
        | Dtype::U64
        | Dtype::S64
        | Dtype::Boolean => false,
    }
}

/// Elements of `N` bytes each, converted.
fn each<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| convert(chunk)).collect()
}

/// On failure: what was expected, and what was found.
fn widen(dtype: Dtype, bytes: &[u8]) -> Result<BatchData, (&'static str, String)> {
    let data = match dtype {
        Dtype::U8 => BatchData::I64(each(bytes, |b: [u8; 1]| i64::from(b[0]))),
        Dtype::S8 => BatchData::I64(each(bytes, |b| i64::from(i8::from_le_bytes(b)))),
        Dtype::U16 => BatchData::I64(each(bytes, |b| i64::from(u16::from_le_bytes(b)))),
        Dtype::S16 => BatchData::I64(each(bytes, |b| i64::from(i16::from_le_bytes(b)))),
        Dtype::U32 => BatchData::I64(each(bytes, |b| i64::from(u32::from_le_bytes(b)))),
        Dtype::S32 => BatchData::I64(each(bytes, |b| i64::from(i32::from_le_bytes(b)))),
        Dtype::S64 => BatchData::I64(each(bytes, i64::from_le_bytes)),
        Dtype::U64 => {
            let values = each(bytes, i64::from_le_bytes);
            if let Some(&wrapped) = values.iter().find(|&&value| value < 0) {
                return Err(("below 2^63", wrapped.cast_unsigned().to_string()));
            }
            BatchData::I64(values)
        }
        Dtype::Boolean => {
            if let Some(other) = bytes.iter().find(|&&byte| 1 < byte) {
                return Err(("0 or 1", other.to_string()));
            }
            BatchData::I64(each(bytes, |b: [u8; 1]| i64::from(b[0])))
        }
        Dtype::F32 => BatchData::F32(each(bytes, f32::from_le_bytes)),
        Dtype::F64 => BatchData::F32(each(bytes, |b| f64::from_le_bytes(b) as f32)),
        Dtype::Bf16 => {
            BatchData::F32(each(bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)))
        }
        Dtype::F16 => BatchData::F32(each(bytes, |b| half_to_single(u16::from_le_bytes(b)))),
    };
    Ok(data)
}

/// IEEE 754 binary16 to binary32, exact.
fn half_to_single(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 0x1f;
    let fraction = u32::from(half) & 0x3ff;
    let magnitude = match exponent {
        // Subnormal: fraction · 2⁻²⁴, exact in f32.
        0 => (fraction as f32 * (1.0 / 16_777_216.0)).to_bits(),
        0x1f => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn builder(samples: usize) -> BatchBuilder {
        let limits = Limits { memory_bytes: 0, call_time: Duration::ZERO, output_bytes: 64 };
        BatchBuilder::new("loader.load", samples, &limits)
    }

    fn refused(error: Result<(), GuestError>) -> String {
        error.unwrap_err().to_string()
    }

    #[test]
    fn tensors_are_widened_by_kind() {
        let mut batch = builder(2);
        batch.put("x".to_owned(), Dtype::Bf16, &[2], &[0x80, 0x3f, 0, 0xc0]).unwrap();
        batch.put("y".to_owned(), Dtype::S8, &[2, 1], &[3, 0xff]).unwrap();
        batch.put("z".to_owned(), Dtype::Boolean, &[2], &[1, 0]).unwrap();
        let data: Vec<_> = batch.finish().unwrap().tensors.into_iter().map(|t| t.data).collect();
        assert_eq!(
            data,
            [
                BatchData::F32(vec![1.0, -2.0]),
                BatchData::I64(vec![3, -1]),
                BatchData::I64(vec![1, 0])
            ]
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name_and_number() {
        let mut batch = builder(2);
        let mut put = |name: &str, dtype, shape: &[u32], bytes: usize| {
            refused(batch.put(name.to_owned(), dtype, shape, &vec![0xff; bytes]))
        };
        assert_eq!(
            put("x", Dtype::F32, &[3, 2], 24),
            "loader.load: tensor \"x\" is [3, 2], expected [2, ..]: one row a sample"
        );
        assert_eq!(
            put("x", Dtype::F32, &[2, 2], 15),
            "loader.load: tensor \"x\" is 15 bytes, expected 16 bytes for Dtype::F32 [2, 2]"
        );
        assert!(put("x", Dtype::F32, &[2, u32::MAX, u32::MAX], 8).contains("bytes"));
        assert!(put("x", Dtype::F32, &[2, u32::MAX, u32::MAX, u32::MAX], 8).contains("exists"));
        assert!(put("x", Dtype::F32, &[], 4).contains("of 1 to 8 axes"));
        assert!(put("x y", Dtype::F32, &[2], 8).contains("a tensor's name is \"x y\""));
        assert!(put("x", Dtype::U64, &[2], 16).contains("is 18446744073709551615"));
        assert!(put("x", Dtype::Boolean, &[2], 2).contains("is 255, expected 0 or 1"));
    }

    #[test]
    fn the_output_limit_counts_widened_bytes_of_all_tensors() {
        let mut batch = builder(2);
        batch.put("a".to_owned(), Dtype::U8, &[2, 3], &[0; 6]).unwrap();
        let error = batch.put("b".to_owned(), Dtype::U8, &[2, 2], &[0; 4]).unwrap_err();
        let what = "loader.load".to_owned();
        assert_eq!(error, GuestError::OutputLimit { what, asked: Some(80), limit: 64 });
        assert!(refused(batch.put("a".to_owned(), Dtype::U8, &[2], &[0; 2])).contains("twice"));
    }

    #[test]
    fn halves_are_exact() {
        for (half, single) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x7c00, f32::INFINITY),
        ] {
            assert_eq!(half_to_single(half), single, "{half:#x}");
        }
        assert!(half_to_single(0x7e00).is_nan());
        assert!(half_to_single(0x8000).is_sign_negative());
    }
}
