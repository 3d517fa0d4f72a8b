//! The threads that kernels may use.

use std::{fmt, sync::Arc};

use rayon::prelude::*;

/// More threads than any machine has cores.
const MAX_THREADS: usize = 1024;

/// A number of threads, and the pool that has them where it is more than one.
///
/// Work is cut up by its shape and never by this number, or so that the number changes no bit of the
/// result: every kernel says which.
#[derive(Clone)]
pub struct Threads {
    pool: Option<Arc<rayon::ThreadPool>>,
    count: usize,
}

impl Threads {
    /// The calling thread alone.
    pub fn single() -> Self {
        Self { pool: None, count: 1 }
    }

    /// As many as asked for, at least one.
    ///
    /// # Errors
    /// If the operating system gives no more threads.
    pub fn new(count: usize) -> Result<Self, ThreadsError> {
        let count = count.clamp(1, MAX_THREADS);
        if count == 1 {
            return Ok(Self::single());
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("kernel-{index}"))
            .build()
            .map_err(|error| ThreadsError { count, error })?;
        Ok(Self { pool: Some(Arc::new(pool)), count })
    }

    /// How many threads work at a time.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Calls `work` for 0, 1, … `count` − 1, in any order and at the same time.
    pub(crate) fn for_each(&self, count: usize, work: impl Fn(usize) + Sync + Send) {
        match &self.pool {
            Some(pool) if 1 < count => {
                pool.install(|| (0..count).into_par_iter().with_max_len(1).for_each(work));
            }
            _ => (0..count).for_each(work),
        }
    }

    /// Cuts `dst` into chunks of `chunk_len` (the last may be shorter) and calls `work` with each and its index.
    pub(crate) fn for_each_chunk<T: Send>(
        &self,
        dst: &mut [T],
        chunk_len: usize,
        work: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        let chunk_len = chunk_len.max(1);
        match &self.pool {
            Some(pool) if chunk_len < dst.len() => pool.install(|| {
                dst.par_chunks_mut(chunk_len)
                    .enumerate()
                    .with_max_len(1)
                    .for_each(|(index, chunk)| work(index, chunk));
            }),
            _ => dst.chunks_mut(chunk_len).enumerate().for_each(|(i, chunk)| work(i, chunk)),
        }
    }

    /// Cuts two slices into as many chunks each, of `lens` elements (the last may be shorter), and calls `work`
    /// with the chunks of one index.
    pub(crate) fn for_each_pair<T: Send>(
        &self,
        (a, b): (&mut [T], &mut [T]),
        lens: (usize, usize),
        work: impl Fn(usize, &mut [T], &mut [T]) + Sync + Send,
    ) {
        let lens = (lens.0.max(1), lens.1.max(1));
        match &self.pool {
            Some(pool) if lens.0 < a.len() => pool.install(|| {
                a.par_chunks_mut(lens.0)
                    .zip(b.par_chunks_mut(lens.1))
                    .enumerate()
                    .with_max_len(1)
                    .for_each(|(index, (a, b))| work(index, a, b));
            }),
            _ => {
                let pairs = a.chunks_mut(lens.0).zip(b.chunks_mut(lens.1));
                pairs.enumerate().for_each(|(index, (a, b))| work(index, a, b));
            }
        }
    }
}

impl Default for Threads {
    fn default() -> Self {
        Self::single()
    }
}

/// The operating system gave fewer threads than asked for.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {count} threads for kernels")]
pub struct ThreadsError {
    count: usize,
    #[source]
    error: rayon::ThreadPoolBuildError,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn every_index_is_worked_once_by_any_number_of_threads() {
        for count in [0, 1, 2, 4] {
            let threads = Threads::new(count).unwrap();
            assert_eq!(threads.count(), count.max(1));
            let calls: Vec<_> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            threads.for_each(100, |index| {
                calls[index].fetch_add(1, Ordering::Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn chunks_come_with_their_index_and_the_last_may_be_short() {
        for count in [1, 3] {
            let threads = Threads::new(count).unwrap();
            let mut dst = [0; 10];
            threads.for_each_chunk(&mut dst, 4, |index, chunk| chunk.fill(index + 1));
            assert_eq!(dst, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
            threads.for_each_chunk(&mut [] as &mut [i32], 4, |_, _| panic!("nothing to do"));
        }
    }

    #[test]
    fn chunks_of_two_slices_come_in_pairs() {
        for count in [1, 3] {
            let threads = Threads::new(count).unwrap();
            let (mut a, mut b) = ([0; 10], [0; 5]);
            threads.for_each_pair((&mut a, &mut b), (4, 2), |index, a, b| {
                a.fill(index + 1);
                b.fill(index + 1);
            });
            assert_eq!((a, b), ([1, 1, 1, 1, 2, 2, 2, 2, 3, 3], [1, 1, 2, 2, 3]));
        }
    }

    #[test]
    fn one_thread_is_the_calling_thread() {
        let caller = std::thread::current().id();
        let seen = Mutex::new(Vec::new());
        Threads::single().for_each(3, |_| seen.lock().unwrap().push(std::thread::current().id()));
        assert_eq!(*seen.lock().unwrap(), [caller; 3]);
    }
}
