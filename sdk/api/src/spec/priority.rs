//! Which of the jobs that wait goes first.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who goes first, and whose slots are taken for whom: more before less.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(transparent)]
pub struct Priority(pub u32);

impl Priority {
    /// The most.
    pub const MAX: Self = Self(99);
}

impl Default for Priority {
    /// In the middle: a job can be put behind the others as well as before them.
    fn default() -> Self {
        Self(50)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
