//! `/v1/me`, `/v1/tokens`, `/v1/join-tokens`: HTTP in, HTTP out.

use axum::extract::State;
use axum::http::StatusCode;
use chrono::TimeDelta;
use lockstep_api::{
    CreateJoinToken, CreateToken, JoinToken, Me, NewToken, PrincipalId, Role, TokenId, TokenList,
};

use super::secret::{Minted, TokenKind};
use super::store;
use crate::app::App;
use crate::extract::{Caller, Json, Path};
use crate::problem::Problem;
use crate::{audit, projects};

/// Longest life of a join token, seconds.
const MAX_JOIN_SECONDS: u32 = 86_400;
/// Characters of a token's name.
const MAX_NAME_CHARS: usize = 100;
/// Valid tokens of one project, and how many a list shows.
const MAX_TOKENS: i64 = 1000;

/// Who the token speaks for.
#[utoipa::path(
    get, path = "/v1/me", operation_id = "get_me", tag = "tokens",
    responses((status = 200, body = Me)),
)]
#[tracing::instrument(name = "me.get", skip_all)]
pub(crate) async fn get_me(State(app): State<App>, caller: Caller) -> Result<Json<Me>, Problem> {
    let mut tx = app.db.project(caller.project_id).await?;
    let names =
        projects::store::find_names(&mut tx, caller.principal_id, caller.project_id).await?;
    tx.rollback().await?;
    let (principal_name, project_name) = names.ok_or(Problem::Unauthenticated)?;
    let Caller { organisation_id, project_id, principal_id, role, token_id: _, request_id: _ } =
        caller;
    Ok(Json(Me { principal_id, principal_name, organisation_id, project_id, project_name, role }))
}

/// Makes an access token, for a new principal of that name. The text is shown this once.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens", request_body = CreateToken,
    responses((status = 201, body = NewToken)),
)]
#[tracing::instrument(name = "tokens.create", skip_all)]
pub(crate) async fn create_token(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<CreateToken>,
) -> Result<(StatusCode, Json<NewToken>), Problem> {
    caller.require(Role::Admin)?;
    caller.require(request.role)?;
    let CreateToken { name, role, ttl_seconds } = request;
    if !(1..=MAX_NAME_CHARS).contains(&name.chars().count()) {
        let message =
            format!("expected 1 to {MAX_NAME_CHARS} characters, got {}", name.chars().count());
        return Err(Problem::field("name", message));
    }
    if ttl_seconds == Some(0) {
        return Err(Problem::field("ttl_seconds", "expected at least 1, got 0"));
    }
    let now = app.clock.now();
    let minted = Minted::new(TokenKind::Access, &app.random);
    let (id, principal_id) = (app.new_id(TokenId::new), app.new_id(PrincipalId::new));
    let mut tx = app.db.project(caller.project_id).await?;
    if MAX_TOKENS <= store::count_valid(&mut tx, caller.project_id, now).await? {
        let message = format!("the project has {MAX_TOKENS} valid tokens: revoke one first");
        return Err(Problem::Conflict(message));
    }
    projects::store::insert_member(&mut tx, caller.project_id, principal_id, &name, role, now)
        .await?;
    let token = store::NewAccessToken {
        token_id: id,
        project_id: caller.project_id,
        principal_id,
        name: &name,
        public_id: &minted.public_id,
        secret_hash: &minted.hash,
        role,
        created_at: now,
        expires_at: ttl_seconds.map(|seconds| now + TimeDelta::seconds(seconds.into())),
    };
    store::insert_access_token(&mut tx, &token).await?;
    audit::record(&mut tx, &caller, "token.create", id, now).await?;
    tx.commit().await?;
    Ok((StatusCode::CREATED, Json(NewToken { id, token: minted.text })))
}

/// The project's access tokens, newest first, without their secrets.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    responses((status = 200, body = TokenList)),
)]
#[tracing::instrument(name = "tokens.list", skip_all)]
pub(crate) async fn list_tokens(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<TokenList>, Problem> {
    caller.require(Role::Admin)?;
    let mut tx = app.db.project(caller.project_id).await?;
    let tokens = store::list(&mut tx, caller.project_id, MAX_TOKENS).await?;
    tx.rollback().await?;
    Ok(Json(TokenList { tokens }))
}

/// Revokes an access token, at once. Safe to repeat.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", operation_id = "revoke_token", tag = "tokens", params(("id" = TokenId, Path)),
    responses((status = 204, description = "Revoked")),
)]
#[tracing::instrument(name = "tokens.revoke", skip_all)]
pub(crate) async fn revoke_token(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<TokenId>,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Admin)?;
    let now = app.clock.now();
    let mut tx = app.db.project(caller.project_id).await?;
    match store::revoke(&mut tx, caller.project_id, id, now).await? {
        store::Revoked::Yes => {}
        store::Revoked::NoSuchToken => return Err(Problem::not_found("token", id)),
    }
    audit::record(&mut tx, &caller, "token.revoke", id, now).await?;
    tx.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a token for machines to join the organisation with. The text is shown this once.
#[utoipa::path(
    post, path = "/v1/join-tokens", operation_id = "create_join_token", tag = "nodes",
    request_body = CreateJoinToken,
    responses((status = 201, body = JoinToken)),
)]
#[tracing::instrument(name = "join_tokens.create", skip_all)]
pub(crate) async fn create_join_token(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<CreateJoinToken>,
) -> Result<(StatusCode, Json<JoinToken>), Problem> {
    caller.require(Role::Admin)?;
    let seconds = request.ttl_seconds;
    if !(1..=MAX_JOIN_SECONDS).contains(&seconds) {
        return Err(Problem::field(
            "ttl_seconds",
            format!("expected 1 to {MAX_JOIN_SECONDS}, got {seconds}"),
        ));
    }
    let now = app.clock.now();
    let expires_at = now + TimeDelta::seconds(seconds.into());
    let minted = Minted::new(TokenKind::Join, &app.random);
    // Nodes belong to the organisation, which the project's role in the database does not see.
    let mut tx = app.db.system().await?;
    store::insert_join_token(
        &mut tx,
        &minted.public_id,
        &minted.hash,
        caller.organisation_id,
        now,
        expires_at,
    )
    .await?;
    audit::record(&mut tx, &caller, "join_token.create", &minted.public_id, now).await?;
    tx.commit().await?;
    Ok((StatusCode::CREATED, Json(JoinToken { token: minted.text, expires_at })))
}
