//! Everything the database knows of tokens. No other module names `access_token` and `join_token`.

use chrono::{DateTime, Utc};
use lockstep_api::{OrganisationId, PrincipalId, ProjectId, Role, TokenId, TokenView};
use sqlx::{PgConnection, query, query_as, query_scalar};

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

/// A row of `access_token` to be.
pub(crate) struct NewAccessToken<'a> {
    pub(crate) token_id: TokenId,
    pub(crate) project_id: ProjectId,
    pub(crate) principal_id: PrincipalId,
    pub(crate) name: &'a str,
    pub(crate) public_id: &'a str,
    pub(crate) secret_hash: &'a [u8],
    pub(crate) role: Role,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: Option<DateTime<Utc>>,
}

/// Records an access token.
pub(crate) async fn insert_access_token(
    db: &mut PgConnection,
    token: &NewAccessToken<'_>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO access_token
            (token_id, project_id, principal_id, name, public_id, secret_hash, role, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        token.token_id as TokenId,
        token.project_id as ProjectId,
        token.principal_id as PrincipalId,
        token.name,
        token.public_id,
        token.secret_hash,
        token.role as Role,
        token.created_at,
        token.expires_at,
    )
    .execute(db)
    .await
    .map(drop)
}

/// How many tokens of the project are valid.
pub(crate) async fn count_valid(
    db: &mut PgConnection,
    project: ProjectId,
    now: DateTime<Utc>,
) -> sqlx::Result<i64> {
    query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM access_token
        WHERE project_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR $2 < expires_at)
        "#,
        project as ProjectId,
        now,
    )
    .fetch_one(db)
    .await
}

/// The project's tokens, newest first.
pub(crate) async fn list(
    db: &mut PgConnection,
    project: ProjectId,
    limit: i64,
) -> sqlx::Result<Vec<TokenView>> {
    let rows = query!(
        r#"
        SELECT token_id AS "id: TokenId", name, public_id, role AS "role: Role", created_at, expires_at, revoked_at
        FROM access_token
        WHERE project_id = $1
        ORDER BY created_at DESC, token_id DESC
        LIMIT $2
        "#,
        project as ProjectId,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| TokenView {
            id: row.id,
            name: row.name,
            starts_with: format!("lsk_{}", row.public_id),
            role: row.role,
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        })
        .collect())
}

/// Whether the token was there to revoke.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// Now, or before.
    Yes,
    /// There is no such token in the project.
    NoSuchToken,
}

/// Revokes a token. Again: changes nothing.
pub(crate) async fn revoke(
    db: &mut PgConnection,
    project: ProjectId,
    id: TokenId,
    now: DateTime<Utc>,
) -> sqlx::Result<Revoked> {
    let touched = query!(
        "UPDATE access_token SET revoked_at = coalesce(revoked_at, $3) WHERE project_id = $1 AND token_id = $2",
        project as ProjectId,
        id as TokenId,
        now,
    )
    .execute(db)
    .await?
    .rows_affected();
    Ok(if touched == 1 { Revoked::Yes } else { Revoked::NoSuchToken })
}
