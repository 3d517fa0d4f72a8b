//! How many ranks a gang has.

use std::fmt;

use serde::de::{Error, MapAccess, Unexpected, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

/// How many ranks train together: always as many, or as slots come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum RankCount {
    /// World size. 1 to 64.
    Fixed(u32),
    /// The gang begins with as many as there are slots for, gives ranks up when they are lost or other jobs wait for their
    /// slots, and grows when slots are free.
    Elastic(RankRange),
}

/// From how many ranks to how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RankRange {
    /// At least so many, or the job waits. 1 to `max`.
    pub min: u32,
    /// At most so many. `min` to 64.
    pub max: u32,
}

impl RankCount {
    /// The fewest.
    pub fn min(self) -> u32 {
        match self {
            Self::Fixed(ranks) => ranks,
            Self::Elastic(RankRange { min, .. }) => min,
        }
    }

    /// The most.
    pub fn max(self) -> u32 {
        match self {
            Self::Fixed(ranks) => ranks,
            Self::Elastic(RankRange { max, .. }) => max,
        }
    }

    /// Whether the world size may change while the job runs.
    pub fn is_elastic(self) -> bool {
        matches!(self, Self::Elastic(_))
    }
}

/// `2`, `1 to 4`
impl fmt::Display for RankCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(ranks) => write!(f, "{ranks}"),
            Self::Elastic(RankRange { min, max }) => write!(f, "{min} to {max}"),
        }
    }
}

/// Not derived: what is wrong in a table should be told by its own name, not as "no variant fits".
impl<'de> Deserialize<'de> for RankCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RankCountVisitor)
    }
}

struct RankCountVisitor;

impl<'de> Visitor<'de> for RankCountVisitor {
    type Value = RankCount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of ranks, or a table of `min` and `max`")
    }

    fn visit_u64<E: Error>(self, ranks: u64) -> Result<RankCount, E> {
        let fixed = u32::try_from(ranks).map(RankCount::Fixed);
        fixed.map_err(|_| E::invalid_value(Unexpected::Unsigned(ranks), &self))
    }

    fn visit_i64<E: Error>(self, ranks: i64) -> Result<RankCount, E> {
        let wrong = || E::invalid_value(Unexpected::Signed(ranks), &self);
        u64::try_from(ranks).map_err(|_| wrong()).and_then(|ranks| self.visit_u64(ranks))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<RankCount, A::Error> {
        RankRange::deserialize(MapAccessDeserializer::new(table)).map(RankCount::Elastic)
    }
}
