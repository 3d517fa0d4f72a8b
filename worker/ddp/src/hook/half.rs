//! Gradients on their way as floats of 16 bits: half the traffic, in the bucket's own memory.
//!
//! A gradient is rounded to 16 bits, then divided by the world size in 16 bits, and summed: the mean over ranks, which
//! does not overflow where the gradients do not. Back in f32 it is multiplied by the world size. That product of 11 or
//! 8 bits with a world size of at most 7 is exact, so that the sum divided by the world size is again, bit for bit,
//! what PyTorch's `fp16_compress_hook` and `bf16_compress_hook` leave.
//!
//! What is too large for the kind becomes infinite, and so does the sum.

use half::{
    f16,
    slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _},
};
use lockstep_collective::{GroupError, PlanParam};

use crate::hook::{BucketComm, Dtype, Hook};

/// Sums as bfloat16: the range of f32, 8 significant bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bf16;

/// Sums as IEEE 754 binary16: up to 65504, 11 significant bits, fewer below 6.1e-5. Wants a loss scale.
#[derive(Debug, Clone, Copy, Default)]
pub struct F16;

impl Hook for Bf16 {
    fn reduce(
        &mut self,
        _bucket: usize,
        _params: &[PlanParam],
        comm: &mut dyn BucketComm,
    ) -> Result<(), GroupError> {
        reduce::<Self>(comm)
    }
}

impl Hook for F16 {
    fn reduce(
        &mut self,
        _bucket: usize,
        _params: &[PlanParam],
        comm: &mut dyn BucketComm,
    ) -> Result<(), GroupError> {
        reduce::<Self>(comm)
    }
}

/// Floats that are converted at a time, aside. Even.
const BLOCK: usize = 64;

/// A kind of 16 bits, by blocks.
trait Kind {
    const DTYPE: Dtype;

    /// To the nearest, to the even one of two; what is too large becomes infinite.
    fn encode(values: &[f32; BLOCK], codes: &mut [u16; BLOCK]);

    fn decode(codes: &[u16; BLOCK], values: &mut [f32; BLOCK]);
}

/// Without branches, so that the compiler makes vectors of it; the other crate goes number by number.
impl Kind for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;

    fn encode(values: &[f32; BLOCK], codes: &mut [u16; BLOCK]) {
        for (code, value) in codes.iter_mut().zip(values) {
            let bits = value.to_bits();
            // Half of the last place that stays, less 1 where that is even. Carries into infinity where it must.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            // Quiet, so that some bit of the fraction stays.
            let undefined = bits >> 16 | 0x40;
            *code = (if value.is_nan() { undefined } else { rounded }) as u16;
        }
    }

    fn decode(codes: &[u16; BLOCK], values: &mut [f32; BLOCK]) {
        for (value, code) in values.iter_mut().zip(codes) {
            *value = f32::from_bits(u32::from(*code) << 16);
        }
    }
}

impl Kind for F16 {
    const DTYPE: Dtype = Dtype::F16;

    fn encode(values: &[f32; BLOCK], codes: &mut [u16; BLOCK]) {
        codes.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values);
    }

    fn decode(codes: &[u16; BLOCK], values: &mut [f32; BLOCK]) {
        codes.reinterpret_cast::<f16>().convert_to_f32_slice(values);
    }
}

fn reduce<K: Kind>(comm: &mut dyn BucketComm) -> Result<(), GroupError> {
    let world = comm.world_size() as f32;
    let bucket = comm.bucket();
    let len = bucket.len();
    pack::<K>(bucket, world);
    comm.all_reduce(K::DTYPE, len)?;
    unpack::<K>(comm.bucket(), world);
    Ok(())
}

/// Puts all floats, rounded and divided, into the front half. The last place of an odd number has zeros above.
fn pack<K: Kind>(bucket: &mut [f32], world: f32) {
    let mut codes = [0; BLOCK];
    for start in (0..bucket.len()).step_by(BLOCK) {
        let end = (start + BLOCK).min(bucket.len());
        let mut values = [0.0; BLOCK];
        values[..end - start].copy_from_slice(&bucket[start..end]);
        K::encode(&values, &mut codes);
        K::decode(&codes, &mut values);
        values.iter_mut().for_each(|value| *value /= world);
        K::encode(&values, &mut codes);
        let pairs = codes.chunks_exact(2);
        for (pair, place) in pairs.zip(&mut bucket[start / 2..end.div_ceil(2)]) {
            *place = f32::from_bits(u32::from(pair[0]) | u32::from(pair[1]) << 16);
        }
    }
}

/// The way back, from the last block on: no block is written before it is read.
fn unpack<K: Kind>(bucket: &mut [f32], world: f32) {
    let (mut codes, mut values) = ([0; BLOCK], [0.0; BLOCK]);
    for start in (0..bucket.len()).step_by(BLOCK).rev() {
        let end = (start + BLOCK).min(bucket.len());
        let pairs = codes.chunks_exact_mut(2);
        for (pair, place) in pairs.zip(&bucket[start / 2..end.div_ceil(2)]) {
            let bits = place.to_bits();
            pair.copy_from_slice(&[(bits & 0xffff) as u16, (bits >> 16) as u16]);
        }
        K::decode(&codes, &mut values);
        for (value, mean) in bucket[start..end].iter_mut().zip(&values) {
            *value = mean * world;
        }
    }
}
