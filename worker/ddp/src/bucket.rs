//! Buckets: neighbors in the arena that are reduced together, in the order of their readiness.

use lockstep_collective::{Bucket, PlanParam};
use lockstep_tensor::Layout;

/// Cuts the arena into buckets, each the longest run of parameters that does not go above its cap;
/// a parameter larger than the cap has one of its own. The first bucket has a cap of its own, so
/// that communication begins early.
///
/// There is always a bucket, be it empty: the votes of a step travel in the last one.
pub fn buckets_of(layout: &Layout, first_cap_bytes: usize, cap_bytes: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = vec![Bucket { range: 0..0, params: Vec::new() }];
    for param in layout.params() {
        let cap = if buckets.len() == 1 { first_cap_bytes } else { cap_bytes };
        let (has_some, bytes) = match buckets.last() {
            Some(last) => {
                (!last.params.is_empty(), (param.range.end - last.range.start) * size_of::<f32>())
            }
            None => (false, 0),
        };
        if has_some && cap < bytes {
            buckets.push(Bucket { range: param.range.start..param.range.start, params: vec![] });
        }
        if let Some(last) = buckets.last_mut() {
            last.range.end = param.range.end;
            last.params.push(PlanParam { name: param.name.clone(), shape: param.shape.clone() });
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bucket_is_small_and_large_parameters_stand_alone() {
        let named = |name: &str, len| (name.to_owned(), vec![len]);
        // In order of first use; the arena has them the other way round.
        let used =
            vec![named("e", 5), named("d", 100), named("c", 6), named("b", 3), named("a", 1)];
        let layout = Layout::new(used).unwrap();
        let buckets = buckets_of(&layout, 4 * 4, 10 * 4);
        let found: Vec<(Vec<&str>, _)> = buckets
            .iter()
            .map(|bucket| {
                let names = bucket.params.iter().map(|param| param.name.as_str()).collect();
                (names, bucket.range.clone())
            })
            .collect();
        let expected = [
            (vec!["a", "b"], 0..4),
            (vec!["c"], 4..10),
            (vec!["d"], 10..110),
            (vec!["e"], 110..115),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_model_without_parameters_has_an_empty_bucket() {
        let buckets = buckets_of(&Layout::new(vec![]).unwrap(), 1, 1);
        assert_eq!(buckets, [Bucket { range: 0..0, params: vec![] }]);
    }
}
