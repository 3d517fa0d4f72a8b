//! Everything the database knows of tokens, and of who they stand for. No other module names these tables.

use chrono::{DateTime, Utc};
use lockstep_api::{OrganisationId, PrincipalId, ProjectId, Role, TokenId};
use sqlx::{PgConnection, query, query_as};

/// A valid token and who it stands for.
#[derive(Clone)]
pub(crate) struct Bearer {
    pub(crate) token_id: TokenId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) project_id: ProjectId,
    pub(crate) principal_id: PrincipalId,
    /// The lesser of the token's and the member's: demoting a member demotes the tokens.
    pub(crate) role: Role,
    pub(crate) secret_hash: Vec<u8>,
}

/// The token of that name, unless it has expired, was revoked, or its principal is no member any more.
pub(crate) async fn find_bearer(
    db: &mut PgConnection,
    public_id: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<Option<Bearer>> {
    query_as!(
        Bearer,
        r#"
        SELECT
            token.token_id          AS "token_id: TokenId",
            project.organisation_id AS "organisation_id: OrganisationId",
            token.project_id        AS "project_id: ProjectId",
            token.principal_id      AS "principal_id: PrincipalId",
            least(token.role, member.role) AS "role!: Role",
            token.secret_hash
        FROM access_token AS token
        JOIN project USING (project_id)
        JOIN member USING (project_id, principal_id)
        WHERE token.public_id = $1
          AND token.revoked_at IS NULL
          AND (token.expires_at IS NULL OR $2 < token.expires_at)
        "#,
        public_id,
        now,
    )
    .fetch_optional(db)
    .await
}

/// A token that lets machines become nodes of an organisation until it expires.
pub(crate) async fn insert_join_token(
    db: &mut PgConnection,
    public_id: &str,
    secret_hash: &[u8],
    organisation_id: OrganisationId,
    now: DateTime<Utc>,
    expires_at: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO join_token (public_id, organisation_id, secret_hash, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5)",
        public_id,
        organisation_id as OrganisationId,
        secret_hash,
        now,
        expires_at,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A join token that is valid now.
#[derive(Clone)]
pub(crate) struct JoinBearer {
    pub(crate) organisation_id: OrganisationId,
    pub(crate) secret_hash: Vec<u8>,
}

/// The join token of that name, unless it has expired. The caller compares the secret.
pub(crate) async fn find_join_bearer(
    db: &mut PgConnection,
    public_id: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<Option<JoinBearer>> {
    query_as!(
        JoinBearer,
        r#"
        SELECT organisation_id AS "organisation_id: OrganisationId", secret_hash
        FROM join_token
        WHERE public_id = $1 AND $2 < expires_at
        "#,
        public_id,
        now,
    )
    .fetch_optional(db)
    .await
}
