//! The authenticated node.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use lockstep_api::NodeId;

use crate::app::App;
use crate::extract::bearer;
use crate::nodes::store;
use crate::problem::Problem;
use crate::tokens::secret::TokenKind;

/// An agent that speaks for its node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeCaller {
    pub(crate) node_id: NodeId,
}

impl FromRequestParts<App> for NodeCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let presented = bearer(&parts.headers, TokenKind::Node).ok_or(Problem::Unauthenticated)?;
        let mut tx = app.db.system().await?;
        let found = store::find_bearer(&mut tx, &presented.public_id).await?;
        tx.rollback().await?;
        let store::NodeBearer { node_id, token_hash } = found.ok_or(Problem::Unauthenticated)?;
        if !presented.proves(&token_hash) {
            return Err(Problem::Unauthenticated);
        }
        Ok(Self { node_id })
    }
}
