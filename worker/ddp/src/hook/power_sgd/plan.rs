//! What of a bucket is compressed, and where it lies.

use std::ops::Range;

use lockstep_collective::{Bucket, PlanParam};

/// One bucket's parameters, apart.
#[derive(Debug)]
pub(super) struct BucketPlan {
    /// Floats of the bucket.
    pub(super) len: usize,
    /// How many parameters it has.
    pub(super) params: usize,
    /// What is compressed.
    pub(super) matrices: Vec<Matrix>,
    /// Floats of all matrices.
    pub(super) matrices_len: usize,
    /// Floats of all P.
    pub(super) p_len: usize,
    /// Floats of all Q.
    pub(super) q_len: usize,
    /// Places in the bucket of what is not compressed.
    plain: Vec<Range<usize>>,
}

/// A parameter whose gradient is compressed: its first axis by the product of all others.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Where it lies in the bucket.
    pub(super) place: Range<usize>,
    /// Where it lies among all matrices.
    pub(super) own: Range<usize>,
    /// Where its P lies among all P: `[rank, rows]`.
    pub(super) p: Range<usize>,
    /// Where its Q lies among all Q: `[rank, columns]`.
    pub(super) q: Range<usize>,
}

impl BucketPlan {
    /// # Panics
    /// If the parameters do not fill the bucket.
    pub(super) fn new(bucket: &Bucket, rank: usize, min_rate: f64) -> Self {
        let Bucket { range, params } = bucket;
        let (matrices, plain) = (Vec::new(), Vec::new());
        let (matrices_len, p_len, q_len) = (0, 0, 0);
        let (len, count) = (range.len(), params.len());
        let mut plan = Self { len, params: count, matrices, matrices_len, p_len, q_len, plain };
        let mut end = 0;
        for PlanParam { name, shape } in params {
            let start = end;
            end += shape.iter().product::<usize>();
            match worthwhile(shape, rank, min_rate) {
                Some(sizes) => plan.push(name, start..end, sizes),
                None => plan.plain.push(start..end),
            }
        }
        assert!(end == len, "parameters of {end} floats in a bucket of {len}");
        plan
    }

    fn push(&mut self, name: &str, place: Range<usize>, sizes: [usize; 3]) {
        let [rows, columns, rank] = sizes;
        let after = |end: &mut usize, len: usize| {
            *end += len;
            *end - len..*end
        };
        self.matrices.push(Matrix {
            name: name.to_owned(),
            rows,
            columns,
            own: after(&mut self.matrices_len, place.len()),
            p: after(&mut self.p_len, rank * rows),
            q: after(&mut self.q_len, rank * columns),
            place,
        });
    }

    /// Floats of the first collective: P, and behind it what is not compressed. No more than the bucket's, since a
    /// P is no larger than its matrix; nor is a Q.
    pub(super) fn first_len(&self) -> usize {
        self.p_len + self.len - self.matrices_len
    }

    /// Copies what is not compressed out of the bucket.
    pub(super) fn pack_plain(&self, bucket: &[f32], mut packed: &mut [f32]) {
        for place in &self.plain {
            let (into, rest) = packed.split_at_mut(place.len());
            into.copy_from_slice(&bucket[place.clone()]);
            packed = rest;
        }
    }

    /// The way back.
    pub(super) fn unpack_plain(&self, mut packed: &[f32], bucket: &mut [f32]) {
        for place in &self.plain {
            let (from, rest) = packed.split_at(place.len());
            bucket[place.clone()].copy_from_slice(from);
            packed = rest;
        }
    }
}

/// Rows, columns and rank of what is worth compressing. Vectors are not, whatever the rate.
fn worthwhile(shape: &[usize], rank: usize, min_rate: f64) -> Option<[usize; 3]> {
    let (&rows, others) = shape.split_first()?;
    let columns = others.iter().product::<usize>();
    let rank = rank.min(rows).min(columns);
    let travels = ((rows + columns) * rank) as f64 * min_rate;
    (1 < rows.min(columns) && travels < (rows * columns) as f64).then_some([rows, columns, rank])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_shrink_enough_are_compressed_and_all_others_are_not() {
        // (32 + 20) · 2 floats travel.
        assert_eq!(worthwhile(&[32, 20], 2, 2.0), Some([32, 20, 2]));
        assert_eq!(worthwhile(&[32, 20], 2, 6.2), None);
        assert_eq!(worthwhile(&[32, 4, 5], 2, 2.0), Some([32, 20, 2]));
        assert_eq!(worthwhile(&[5, 16], 2, 2.0), None);
        assert_eq!(worthwhile(&[3, 400], 5, 0.1), Some([3, 400, 3]));
        for shape in [&[][..], &[40], &[40, 1], &[1, 40], &[0, 40], &[40, 0, 3]] {
            assert_eq!(worthwhile(shape, 1, 1e-3), None, "{shape:?}");
        }
    }

    #[test]
    fn what_travels_fits_into_the_bucket() {
        let param = |name: &str, shape: &[usize]| PlanParam {
            name: name.to_owned(),
            shape: shape.to_vec(),
        };
        let params = vec![param("b", &[6]), param("w", &[6, 9]), param("v", &[7, 2])];
        let bucket = Bucket { range: 10..84, params };
        // Full rank: P of [6, 6] and [2, 7], Q of [6, 9] and [2, 2].
        let plan = BucketPlan::new(&bucket, 9, 0.01);
        assert_eq!((plan.p_len, plan.q_len, plan.first_len()), (50, 58, 56));
        assert!(plan.first_len() <= plan.len && plan.q_len <= plan.len);
        let places: Vec<_> = plan.matrices.iter().map(|matrix| matrix.place.clone()).collect();
        assert_eq!(places, [6..60, 60..74]);
    }
}
