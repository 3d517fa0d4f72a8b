//! Ids and small numbers with a meaning: one type for each, so that one cannot stand for another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Declares one UUID newtype per kind of thing, so that a node id can never be passed as a job id.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        pub struct $name(pub Uuid);

        impl $name {
            /// A version 7 id: the creation time in milliseconds since the Unix epoch, then randomness.
            pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
                Self(uuid::Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    )+};
}

ids! {
    /// A body that owns projects.
    OrganisationId;
    /// What a team shares: jobs, data, quota.
    ProjectId;
    /// Someone or something that acts: a person or a program.
    PrincipalId;
    /// One access token.
    TokenId;
    /// One training job as its owner submitted it.
    JobId;
    /// One try at a job, on one gang of nodes.
    AttemptId;
    /// One machine that runs the agent.
    NodeId;
    /// One published checkpoint.
    CheckpointId;
    /// One verdict on something that broke.
    FailureId;
    /// One registered dataset.
    DatasetId;
}

/// Declares one number newtype.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, utoipa::ToSchema)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

numbers! {
    /// The fencing number of a job: counts up with every placement and never resets.
    Generation(i64);
    /// One process in a process group, `0..world_size`.
    Rank(i32);
    /// One of the groups that the same ranks form, counted from 0; each numbers its collectives for itself.
    Lane(i32);
    /// One optimizer step, counted from 0. As a count ("steps done") it is the next step to do.
    Step(i64);
}

impl Generation {
    /// The next one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The SHA-256 of some bytes, written `sha256:` and 64 lower-case hex digits.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, pattern = "^sha256:[0-9a-f]{64}$")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent, no_pg_array))]
pub struct Digest(String);

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected sha256: and 64 lower-case hex digits, got {got:?}")]
pub struct DigestError {
    /// The text as it came.
    pub got: String,
}

impl Digest {
    /// What every digest begins with.
    pub const PREFIX: &'static str = "sha256:";

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_sha256(Sha256::digest(bytes).into())
    }

    /// From a finished SHA-256.
    pub fn from_sha256(hash: [u8; 32]) -> Self {
        let mut text = String::with_capacity(71);
        text.push_str(Self::PREFIX);
        for byte in hash {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(nibble), 16).expect("a nibble is below 16"));
            }
        }
        Self(text)
    }

    /// `sha256:…`
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hex digits alone; safe as a file name.
    pub fn hex(&self) -> &str {
        &self.0[Self::PREFIX.len()..]
    }
}

impl FromStr for Digest {
    type Err = DigestError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix(Self::PREFIX).filter(|hex| hex.len() == 64);
        match hex {
            Some(hex) if hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(DigestError { got: text.chars().take(100).collect() }),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_sha256_and_survives_text() {
        let digest = Digest::of(b"");
        assert_eq!(
            digest.as_str(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(digest.as_str().parse(), Ok(digest));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        for text in ["", "sha256:", "sha256:XYZ", &format!("sha256:{}", "A".repeat(64)), "md5:00"] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
