//! Memory that goes from one value to the next.

/// Buffers that nobody holds, by capacity.
///
/// A tape asks for the same lengths in the same order each time a grain has the same shapes, so that
/// after the second grain every request is met by what the first ones left: nothing is allocated.
#[derive(Debug)]
pub(super) struct Pool<T> {
    /// Ascending by capacity.
    free: Vec<Vec<T>>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { free: Vec::new() }
    }
}

impl<T: Copy> Pool<T> {
    /// A buffer of that length with leftovers in it: the smallest that is long enough, unless it is more
    /// than twice as long.
    pub(super) fn take(&mut self, len: usize, filler: T) -> Vec<T> {
        if len == 0 {
            return Vec::new();
        }
        let place = self.free.partition_point(|buffer| buffer.capacity() < len);
        let fits = self.free.get(place).is_some_and(|buffer| buffer.capacity() / 2 <= len);
        let mut buffer = if fits { self.free.remove(place) } else { Vec::with_capacity(len) };
        buffer.resize(len, filler);
        buffer
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Vec<T>) {
        if buffer.capacity() == 0 {
            return;
        }
        let place = self.free.partition_point(|other| other.capacity() < buffer.capacity());
        self.free.insert(place, buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_buffer_that_fits_is_used_again_unless_it_is_far_too_long() {
        let mut pool = Pool::<f32>::default();
        for len in [100, 10, 1000] {
            let buffer = pool.take(len, 0.0);
            assert_eq!((buffer.len(), buffer.capacity()), (len, len));
            pool.give(buffer);
        }
        // 10 fits nothing below; 100 serves 60; 1000 is too long for 200.
        assert_eq!(pool.take(60, 0.0).capacity(), 100);
        assert_eq!(pool.take(200, 0.0).capacity(), 200);
        assert_eq!(pool.take(5, 0.0).capacity(), 10);
        assert_eq!(pool.take(501, 0.0).capacity(), 1000);
        assert_eq!(pool.take(0, 0.0).capacity(), 0);
    }
}
