//! Where a channel's values lie, and sums over them.

use super::columns::column_sums;
use crate::{
    kernel::{Sums, Threads, Write, sum_columns},
    meta::{Meta, elements},
    peers::Peers,
    real::Real,
};

/// Elements that are worth a thread's while.
const CHUNK: usize = 1 << 14;

/// How a tensor of `[images, channels, ..]` lies in memory: runs of `inner` elements of one channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    images: usize,
    pub(super) channels: usize,
    inner: usize,
}

impl Places {
    pub(super) fn of(x: &Meta) -> Self {
        Self { images: x.shape[0], channels: x.shape[1], inner: elements(&x.shape[2..]) }
    }

    /// Values of each channel.
    pub(super) fn values(&self) -> usize {
        self.images * self.inner
    }

    /// The runs of a channel, from image to image.
    #[inline(always)]
    fn runs(self, channel: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.images).map(move |image| {
            let start = (image * self.channels + channel) * self.inner;
            start..start + self.inner
        })
    }

    /// Runs of a stretch that is worth a thread's while.
    fn runs_at_once(&self) -> usize {
        (CHUNK / self.inner.max(1)).max(1)
    }

    /// Calls `work` with the channel, the place and the elements of `dst` of each run.
    pub(super) fn each_run<T: Real>(
        &self,
        dst: &mut [T],
        threads: &Threads,
        work: impl Fn(usize, std::ops::Range<usize>, &mut [T]) + Sync + Send,
    ) {
        let (inner, at_once) = (self.inner.max(1), self.runs_at_once());
        threads.for_each_chunk(dst, at_once * inner, |index, dst| {
            let first = index * at_once;
            let mut channel = first % self.channels;
            for (place, dst) in dst.chunks_exact_mut(inner).enumerate() {
                let start = (first + place) * inner;
                work(channel, start..start + inner, dst);
                channel = if channel + 1 == self.channels { 0 } else { channel + 1 };
            }
        });
    }

    /// Channels that are worth it together.
    fn channels_at_once(&self) -> usize {
        (CHUNK / self.values().max(1)).max(1)
    }

    /// Of each channel `N` sums, side by side in `dst`, of `value(elements of several tensors at the same place,
    /// centre of the channel)`.
    pub(super) fn sum_channels<T: Real, const M: usize, const N: usize>(
        &self,
        dst: &mut [T],
        from: [&[T]; M],
        centre: &[T],
        threads: &Threads,
        value: impl Fn([T; M], T) -> [T; N] + Sync + Send,
    ) {
        if self.inner == 1 {
            return column_sums(dst, from, centre, value);
        }
        let at_once = self.channels_at_once();
        threads.for_each_chunk(dst, N * at_once, |index, dst| {
            for (place, dst) in dst.chunks_exact_mut(N).enumerate() {
                let channel = index * at_once + place;
                let centre = centre[channel];
                let mut sums = Sums::new();
                for run in self.runs(channel) {
                    sums.add(from.map(|slice| &slice[run.clone()]), |values| value(values, centre));
                }
                dst.copy_from_slice(&sums.totals().map(T::from_f64));
            }
        });
    }

    /// Mean and variance of each channel, at the beginning and the end of `saved`. `scratch` is as long as `x`.
    pub(super) fn statistics<T: Real>(
        &self,
        x: &[T],
        saved: &mut [T],
        scratch: &mut [T],
        threads: &Threads,
    ) {
        let values = self.values() as f64;
        let (mean, rest) = saved.split_at_mut(self.channels);
        let variance = &mut rest[self.channels..];
        let share = |sum: T| T::from_f64(sum.to_f64() / values);
        if self.inner == 1 {
            sum_columns(threads, mean, Write::Set, [x], |_| |[x]: [T; 1]| x);
            mean.iter_mut().for_each(|mean| *mean = share(*mean));
            column_sums(variance, [x], mean, square);
            variance.iter_mut().for_each(|variance| *variance = share(*variance));
            return;
        }
        // Both of a channel side by side, so that a thread has them at once: each channel has two values or more.
        let both = &mut scratch[..2 * self.channels];
        let at_once = self.channels_at_once();
        threads.for_each_chunk(both, 2 * at_once, |index, both| {
            for (place, both) in both.chunks_exact_mut(2).enumerate() {
                let channel = index * at_once + place;
                let mut sum = Sums::new();
                self.runs(channel).for_each(|run| sum.add([&x[run]], |[x]| [x]));
                let mean = T::from_f64(sum.totals()[0] / values);
                let mut squares = Sums::new();
                self.runs(channel).for_each(|run| squares.add([&x[run]], |x| square(x, mean)));
                both.copy_from_slice(&[mean, T::from_f64(squares.totals()[0] / values)]);
            }
        });
        for (channel, both) in both.chunks_exact(2).enumerate() {
            (mean[channel], variance[channel]) = (both[0], both[1]);
        }
    }

    /// [`Places::statistics`] of everybody's batches together; how many values that were.
    pub(super) fn joint_statistics<T: Real>(
        &self,
        x: &[T],
        saved: &mut [T],
        scratch: &mut [T],
        (threads, peers): (&Threads, &dyn Peers),
    ) -> f64 {
        let (mean, rest) = saved.split_at_mut(self.channels);
        let variance = &mut rest[self.channels..];
        let sums = &mut scratch[..self.channels];
        self.sum_channels(sums, [x], mean, threads, |[x], _| [x]);
        let mut totals = vec![self.values() as f64];
        totals.extend(sums.iter().map(|sum| sum.to_f64()));
        peers.sum(&mut totals);
        let values = totals[0];
        let share = |total: &f64| T::from_f64(total / values);
        mean.iter_mut().zip(&totals[1..]).for_each(|(mean, total)| *mean = share(total));
        // Around the mean of all: a difference of large numbers would have lost what is small.
        self.sum_channels(sums, [x], mean, threads, square);
        let squares = &mut totals[1..];
        squares.iter_mut().zip(&*sums).for_each(|(total, sum)| *total = sum.to_f64());
        peers.sum(squares);
        variance.iter_mut().zip(&*squares).for_each(|(it, total)| *it = share(total));
        values
    }
}

#[inline(always)]
fn square<T: Real>([x]: [T; 1], mean: T) -> [T; 1] {
    [(x - mean) * (x - mean)]
}
