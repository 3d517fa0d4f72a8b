//! The plan of collectives, which all ranks must have alike before any of them runs.

use std::{fmt::Write, ops::Range};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Everything that ranks agree on when a group forms.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Ranks of each node.
    pub nodes: Vec<usize>,
    /// Floats of an arena.
    pub arena_len: usize,
    /// Arenas of each rank.
    pub slots: usize,
    /// Whatever else must be the same, by name: in which order gradients are added, how they travel.
    pub settings: Vec<(String, String)>,
    /// Rows of the board: the most grains a step may have.
    pub grain_rows: usize,
    /// Columns of the board: numbers that each grain reports.
    pub grain_columns: usize,
    /// What is reduced, in this order.
    pub buckets: Vec<Bucket>,
}

/// Gradients that travel together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Floats of the arena.
    pub range: Range<usize>,
    /// The parameters in it, in arena order.
    pub params: Vec<PlanParam>,
}

/// One parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanParam {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// The first thing that two plans say differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// A parameter's name, or which property of the plan.
    pub what: String,
    /// What this plan says.
    pub ours: String,
    /// What the other plan says.
    pub theirs: String,
}

impl Plan {
    /// SHA-256 of the plan, in hexadecimal.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(self.to_text());
        digest.iter().fold(String::new(), |mut text, octet| {
            // Writing to a string cannot fail.
            write!(text, "{octet:02x}").unwrap_or_default();
            text
        })
    }

    /// The plan as it is written into the group's memory.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a plan is numbers, strings and lists")
    }

    /// The first thing that `other` says differently; parameters come first, in order.
    pub fn first_difference(&self, other: &Self) -> Option<Difference> {
        let ours: Vec<_> = self.placed_params().collect();
        let theirs: Vec<_> = other.placed_params().collect();
        for index in 0..ours.len().max(theirs.len()) {
            let (left, right) = (ours.get(index), theirs.get(index));
            if left != right {
                let name = left.or(right).map_or("", |(param, _)| &param.name);
                let said = |side: Option<&(&PlanParam, usize)>| {
                    side.map_or_else(|| "nothing".to_owned(), describe)
                };
                return Some(Difference {
                    what: name.to_owned(),
                    ours: said(left),
                    theirs: said(right),
                });
            }
        }
        self.first_different_property(other)
    }

    fn first_different_property(&self, other: &Self) -> Option<Difference> {
        // Destructured, so that a new field is compared or does not compile.
        let Self { nodes, arena_len, slots, settings, grain_rows, grain_columns, buckets } = self;
        let ranges = |buckets: &[Bucket]| -> Vec<Range<usize>> {
            buckets.iter().map(|bucket| bucket.range.clone()).collect()
        };
        let properties = [
            ("the ranks of each node", format!("{nodes:?}"), format!("{:?}", other.nodes)),
            ("the length of an arena", arena_len.to_string(), other.arena_len.to_string()),
            ("the number of arenas", slots.to_string(), other.slots.to_string()),
            ("the most grains", grain_rows.to_string(), other.grain_rows.to_string()),
            ("the numbers of a grain", grain_columns.to_string(), other.grain_columns.to_string()),
            (
                "the buckets",
                format!("{:?}", ranges(buckets)),
                format!("{:?}", ranges(&other.buckets)),
            ),
        ];
        let properties = properties.map(|(what, ours, theirs)| (what.to_owned(), ours, theirs));
        let value = |plan: &Self, name: &str| {
            let setting = plan.settings.iter().find(|(setting, _)| setting == name);
            setting.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let settings = settings.iter().chain(&other.settings);
        let settings =
            settings.map(|(name, _)| (name.clone(), value(self, name), value(other, name)));
        properties
            .into_iter()
            .chain(settings)
            .find(|(_, ours, theirs)| ours != theirs)
            .map(|(what, ours, theirs)| Difference { what, ours, theirs })
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.nodes.iter().sum()
    }

    fn placed_params(&self) -> impl Iterator<Item = (&PlanParam, usize)> {
        self.buckets
            .iter()
            .enumerate()
            .flat_map(|(index, bucket)| bucket.params.iter().map(move |param| (param, index)))
    }

    /// "bucket 3 of 9 (fc2.bias … fc1.weight)", counted from 1.
    pub fn bucket_name(&self, index: usize) -> String {
        let params = self.buckets.get(index).map_or(&[][..], |bucket| &bucket.params);
        let names = match params {
            [] => String::new(),
            [only] => format!(" ({})", only.name),
            [first, .., last] => format!(" ({} … {})", first.name, last.name),
        };
        format!("bucket {} of {}{names}", index + 1, self.buckets.len())
    }
}

fn describe((param, bucket): &(&PlanParam, usize)) -> String {
    format!("{} {:?} in bucket {}", param.name, param.shape, bucket + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let param = |name: &str, shape: &[usize]| PlanParam {
            name: name.to_owned(),
            shape: shape.to_vec(),
        };
        Plan {
            nodes: vec![2],
            arena_len: 10,
            slots: 1,
            settings: vec![("the reduction".to_owned(), "fast".to_owned())],
            grain_rows: 4,
            grain_columns: 2,
            buckets: vec![
                Bucket { range: 0..4, params: vec![param("b", &[4])] },
                Bucket { range: 4..10, params: vec![param("w", &[3, 2])] },
            ],
        }
    }

    #[test]
    fn the_first_parameter_that_differs_is_named_with_both_sides() {
        let mut other = plan();
        other.buckets[1].params[0].shape = vec![2, 3];
        let difference = plan().first_difference(&other).unwrap();
        assert_eq!(difference.what, "w");
        assert_eq!(difference.ours, "w [3, 2] in bucket 2");
        assert_eq!(difference.theirs, "w [2, 3] in bucket 2");

        other.buckets.pop();
        assert_eq!(plan().first_difference(&other).unwrap().theirs, "nothing");
        assert_eq!(other.first_difference(&plan()).unwrap().what, "w");
    }

    #[test]
    fn other_differences_are_found_too_and_equal_plans_have_equal_hashes() {
        let mut other = plan();
        assert_eq!(plan().first_difference(&other), None);
        assert_eq!(plan().hash(), other.hash());
        assert_eq!(plan().hash().len(), 64);
        other.grain_rows = 5;
        assert_eq!(plan().first_difference(&other).unwrap().what, "the most grains");
        assert_ne!(plan().hash(), other.hash());
        let mut other = plan();
        other.settings.push(("the hook".to_owned(), "bf16".to_owned()));
        let difference = plan().first_difference(&other).unwrap();
        assert_eq!((&*difference.what, &*difference.ours), ("the hook", "nothing"));
        assert_eq!(other.first_difference(&plan()).unwrap().theirs, "nothing");
    }

    #[test]
    fn a_bucket_is_named_with_its_first_and_last_parameter() {
        assert_eq!(plan().bucket_name(1), "bucket 2 of 2 (w)");
        let mut other = plan();
        let moved = other.buckets.remove(0).params.remove(0);
        other.buckets[0].params.insert(0, moved);
        assert_eq!(other.bucket_name(0), "bucket 1 of 1 (b … w)");
    }
}
