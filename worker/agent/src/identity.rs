//! Who this node is to the server: kept in `node.json`, mode 0600.

use std::fmt;
use std::time::Duration;

use anyhow::Context as _;
use camino::Utf8Path;
use lockstep_api::{JoinResponse, NodeId};
use serde::{Deserialize, Serialize};

use crate::files::replace_file;

/// What the server gave the node when it joined.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) node_id: NodeId,
    node_token: String,
    heartbeat_ms: u64,
    orphan_grace_ms: u64,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("node_id", &self.node_id).finish_non_exhaustive()
    }
}

impl From<JoinResponse> for Identity {
    fn from(answer: JoinResponse) -> Self {
        let JoinResponse { node_id, node_token, heartbeat_ms, lease_ms: _, orphan_grace_ms } =
            answer;
        Self { node_id, node_token, heartbeat_ms, orphan_grace_ms }
    }
}

impl Identity {
    pub(crate) fn token(&self) -> &str {
        &self.node_token
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.clamp(50, 60_000))
    }

    pub(crate) fn orphan_grace(&self) -> Duration {
        Duration::from_millis(self.orphan_grace_ms.max(1000))
    }

    /// `None` when the node has not joined yet, or what is kept cannot be understood.
    pub(crate) fn read(path: &Utf8Path) -> anyhow::Result<Option<Self>> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        };
        match serde_json::from_slice(&text) {
            Ok(identity) => Ok(Some(identity)),
            Err(error) => {
                tracing::warn!(%path, line = error.line(), "the kept identity cannot be understood: joining anew");
                Ok(None)
            }
        }
    }

    pub(crate) fn write(&self, path: &Utf8Path) -> anyhow::Result<()> {
        let text = serde_json::to_vec(self).expect("an identity is strings and numbers");
        replace_file(path, &text).with_context(|| format!("cannot write {path}"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use camino::Utf8PathBuf;

    use super::*;

    #[test]
    fn an_identity_is_kept_for_the_owner_alone_and_shows_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().join("node.json")).unwrap();
        assert_eq!(Identity::read(&path).unwrap(), None);
        let identity = Identity {
            node_id: NodeId::new(0, [1; 10]),
            node_token: "lsn_secret".to_owned(),
            heartbeat_ms: 1000,
            orphan_grace_ms: 600_000,
        };
        identity.write(&path).unwrap();
        assert_eq!(Identity::read(&path).unwrap(), Some(identity.clone()));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!format!("{identity:?}").contains("secret"));
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Identity::read(&path).unwrap(), None);
    }
}
