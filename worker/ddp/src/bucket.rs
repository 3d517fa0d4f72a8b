//! Buckets: neighbors in the arena that are reduced together, in the order of their readiness.

use lockstep_collective::{Bucket, PlanParam};
use lockstep_tensor::Layout;

/// When a bucket is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BucketRule {
    /// Before it would go above its cap; a parameter larger than the cap has a bucket of its own.
    ///
    /// The default: no bucket of several parameters waits, or needs room on its way, for more bytes than the setting
    /// says. The price is a bucket for a bias whose weight does not fit beside it. Sums are the same bits either way.
    #[default]
    WithinCap,
    /// As soon as it has reached its cap: PyTorch's rule. Only the last one is smaller, so that there are never many;
    /// a bucket may be as much too large as a parameter is.
    AtCap,
}

/// Cuts the arena into buckets by the default rule. See [`buckets_by`].
pub fn buckets_of(layout: &Layout, first_cap_bytes: usize, cap_bytes: usize) -> Vec<Bucket> {
    buckets_by(BucketRule::default(), layout, first_cap_bytes, cap_bytes)
}

/// Cuts the arena into runs of parameters. The first bucket has a cap of its own, so that communication begins early.
///
/// There is always a bucket, be it empty: the votes of a step travel in the last one.
pub fn buckets_by(
    rule: BucketRule,
    layout: &Layout,
    first_cap_bytes: usize,
    cap_bytes: usize,
) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = vec![Bucket { range: 0..0, params: Vec::new() }];
    for param in layout.params() {
        let cap = if buckets.len() == 1 { first_cap_bytes } else { cap_bytes };
        let is_full = buckets.last().is_some_and(|last| {
            let bytes = |end: usize| (end - last.range.start) * size_of::<f32>();
            !last.params.is_empty()
                && match rule {
                    BucketRule::WithinCap => cap < bytes(param.range.end),
                    BucketRule::AtCap => cap <= bytes(last.range.end),
                }
        });
        if is_full {
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

    /// Cuts models by sizes of their parameters, as PyTorch was recorded to.
    #[test]
    fn pytorchs_rule_gives_pytorchs_buckets() {
        let recorded: serde_json::Value =
            serde_json::from_str(include_str!("../tests/golden/partition.json")).unwrap();
        let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
        let cases = recorded["ddp_buckets"].as_array().unwrap();
        for case in cases {
            let sizes = recorded["sizes"][case["sizes"].as_str().unwrap()].as_array().unwrap();
            let params =
                sizes.iter().enumerate().map(|(i, size)| (i.to_string(), vec![number(size)]));
            let layout = Layout::new(params.collect()).unwrap();
            let caps = [&case["first_bucket_bytes"], &case["cap_bytes"]].map(number);
            let buckets = buckets_by(BucketRule::AtCap, &layout, caps[0], caps[1]);
            let names = |bucket: &Bucket| -> Vec<usize> {
                bucket.params.iter().map(|param| param.name.parse().unwrap()).collect()
            };
            let ours: Vec<_> = buckets.iter().map(names).collect();
            let theirs: Vec<Vec<usize>> = serde_json::from_value(case["buckets"].clone()).unwrap();
            assert_eq!(ours, theirs, "{} of {caps:?}", case["sizes"]);
        }
        assert_eq!(cases.len(), 30);
    }

    #[test]
    fn the_rules_differ_in_where_a_parameter_that_crosses_the_cap_goes() {
        let params = [("c", 6), ("b", 3), ("a", 3)].map(|(name, len)| (name.to_owned(), vec![len]));
        let layout = Layout::new(params.to_vec()).unwrap();
        let lens = |rule, cap: usize| -> Vec<usize> {
            let buckets = buckets_by(rule, &layout, cap * 4, cap * 4);
            buckets.iter().map(|bucket| bucket.range.len()).collect()
        };
        assert_eq!(lens(BucketRule::WithinCap, 5), [3, 3, 6]);
        assert_eq!(lens(BucketRule::AtCap, 5), [6, 6]);
        // One that is just full is full by either.
        assert_eq!(lens(BucketRule::WithinCap, 6), [6, 6]);
        assert_eq!(lens(BucketRule::AtCap, 6), [6, 6]);
    }
}
