//! Buckets of ranks that are threads of the test.

use std::{
    sync::{Barrier, Mutex},
    thread,
};

use half::{bf16, f16};
use lockstep_ddp::{
    GroupError,
    hook::{BucketComm, Dtype},
};

/// Where ranks lay down what they have.
struct Exchange {
    parts: Mutex<Vec<Vec<u32>>>,
    barrier: Barrier,
}

/// One rank's bucket.
pub(crate) struct ThreadComm<'a> {
    rank: usize,
    exchange: &'a Exchange,
    pub(crate) bucket: Vec<f32>,
    /// What was reduced so far.
    pub(crate) traffic: Vec<(Dtype, usize)>,
}

/// Runs `work` on so many ranks at once; what each returns.
pub(crate) fn on_ranks<R: Send>(
    world: usize,
    work: impl Fn(usize, ThreadComm<'_>) -> R + Sync,
) -> Vec<R> {
    let parts = Mutex::new(vec![Vec::new(); world]);
    let exchange = &Exchange { parts, barrier: Barrier::new(world) };
    thread::scope(|scope| {
        let start = |rank| {
            let comm = ThreadComm { rank, exchange, bucket: Vec::new(), traffic: Vec::new() };
            let work = &work;
            scope.spawn(move || work(rank, comm))
        };
        let ranks: Vec<_> = (0..world).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

impl BucketComm for ThreadComm<'_> {
    fn world_size(&self) -> usize {
        self.exchange.parts.lock().unwrap().len()
    }

    fn bucket(&mut self) -> &mut [f32] {
        &mut self.bucket
    }

    fn all_reduce(&mut self, dtype: Dtype, len: usize) -> Result<(), GroupError> {
        self.traffic.push((dtype, len));
        let ours: Vec<u32> = self.bucket.iter().map(|x| x.to_bits()).collect();
        self.exchange.parts.lock().unwrap()[self.rank] = ours;
        self.exchange.barrier.wait();
        let parts = self.exchange.parts.lock().unwrap().clone();
        for index in 0..len {
            match dtype {
                Dtype::F32 => {
                    let terms = parts.iter().map(|part| f32::from_bits(part[index]));
                    self.bucket[index] = in_order(terms);
                }
                Dtype::Bf16 => {
                    let terms =
                        parts.iter().map(|part| bf16::from_bits(half(part, index)).to_f32());
                    self.put(index, bf16::from_f32(in_order(terms)).to_bits());
                }
                Dtype::F16 => {
                    let terms = parts.iter().map(|part| f16::from_bits(half(part, index)).to_f32());
                    self.put(index, f16::from_f32(in_order(terms)).to_bits());
                }
                Dtype::F64 | Dtype::I64 => panic!("no hook asks for {dtype:?}"),
            }
        }
        self.exchange.barrier.wait();
        Ok(())
    }
}

impl ThreadComm<'_> {
    fn put(&mut self, index: usize, half: u16) {
        let (place, shift) = (&mut self.bucket[index / 2], 16 * (index % 2));
        let other = place.to_bits() & !(0xffff << shift);
        *place = f32::from_bits(other | u32::from(half) << shift);
    }
}

fn half(part: &[u32], index: usize) -> u16 {
    (part[index / 2] >> (16 * (index % 2)) & 0xffff) as u16
}

fn in_order(terms: impl Iterator<Item = f32>) -> f32 {
    terms.reduce(|sum, term| sum + term).unwrap()
}
