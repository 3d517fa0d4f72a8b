//! What changed, by whom. Append only; only this file names the table.

use std::fmt::Display;

use chrono::{DateTime, Utc};
use lockstep_api::{PrincipalId, ProjectId, TokenId};
use sqlx::{PgConnection, query};

use crate::extract::Caller;

/// Writes one line of the trail, in the transaction of the change itself. `action`: `job.submit`.
pub(crate) async fn record(
    db: &mut PgConnection,
    caller: &Caller,
    action: &'static str,
    object: impl Display,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO audit_event (project_id, principal_id, token_id, action, object, request_id, at)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        caller.project_id as ProjectId,
        caller.principal_id as PrincipalId,
        caller.token_id as TokenId,
        action,
        object.to_string(),
        caller.request_id,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}
