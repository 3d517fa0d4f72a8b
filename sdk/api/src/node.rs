//! Nodes, tokens, and who the caller is.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{
    DeviceKind, DrainState, NodeId, OrganisationId, PrincipalId, ProjectId, Role, TokenId,
};

/// What a node offers: one entry a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    /// Slots of processor cores; each holds one rank.
    pub cpu_slots: Vec<CpuSlot>,
    /// GPUs. Empty on a node without.
    pub cuda_devices: Vec<CudaDevice>,
    /// Memory of the whole node, MiB.
    pub memory_mib: u32,
}

/// Cores for one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuSlot {
    /// Position within the node, from 0.
    pub index: i32,
    /// How many cores.
    pub cores: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CudaDevice {
    /// Position within the node, from 0.
    pub index: i32,
    /// As the driver names it.
    pub model: String,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// As the driver names it.
    pub uuid: String,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeView {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Whether its lease holds.
    pub is_live: bool,
    /// Last heard of.
    pub last_seen_at: DateTime<Utc>,
    /// Failures of the last 10 minutes that are its doing. From 2 on it gets work only if no other node has room.
    pub blames: u32,
    /// While it gets no work because of them.
    pub quarantine: Option<NodeQuarantine>,
    /// While it takes no new work because someone asked.
    pub drain: Option<DrainState>,
    /// Its slots.
    pub slots: Vec<NodeSlot>,
}

/// Why a node gets no work, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeQuarantine {
    /// Which one in a row: each lasts twice as long as the one before, 30 s to an hour.
    pub count: u32,
    /// When it is over.
    pub until: DateTime<Utc>,
    /// Why, as a part of a sentence.
    pub reason: String,
}

/// One slot of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeSlot {
    /// Kind of device.
    pub device: DeviceKind,
    /// Position among its kind.
    pub index: i32,
    /// Whether a rank holds it.
    pub is_busy: bool,
}

/// Makes a token for a node to join with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateJoinToken {
    /// Seconds until it expires: 1 to 86400.
    pub ttl_seconds: u32,
}

/// A join token. Shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JoinToken {
    /// The secret text: `lsj_…`.
    pub token: String,
    /// Expiry.
    pub expires_at: DateTime<Utc>,
}

/// Makes an access token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// For people, 1 to 100 characters. The token acts as a principal of this name.
    pub name: String,
    /// At most the caller's own role.
    pub role: Role,
    /// Seconds until it expires, at least 1; absent: never.
    #[serde(default)]
    pub ttl_seconds: Option<u32>,
}

/// A new access token. Shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NewToken {
    /// Its id, to revoke it.
    pub id: TokenId,
    /// The secret text: `lsk_…`.
    pub token: String,
}

/// An access token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenView {
    /// Its id, to revoke it.
    pub id: TokenId,
    /// For people.
    pub name: String,
    /// What its text begins with: `lsk_` and 8 characters.
    pub starts_with: String,
    /// What it may do.
    pub role: Role,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// Expiry, if it has one.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<DateTime<Utc>>,
}

/// The access tokens of a project (`GET /v1/tokens`), newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenList {
    /// At most 1000: a project holds no more that are valid.
    pub tokens: Vec<TokenView>,
}

/// Who the caller is (`GET /v1/me`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Me {
    /// Who acts.
    pub principal_id: PrincipalId,
    /// Their name.
    pub principal_name: String,
    /// The organisation.
    pub organisation_id: OrganisationId,
    /// The project the token is for.
    pub project_id: ProjectId,
    /// That project's name.
    pub project_name: String,
    /// What the token may do there.
    pub role: Role,
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinToken").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("id", &self.id).finish_non_exhaustive()
    }
}
