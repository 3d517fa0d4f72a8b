//! `init`: the first organisation, project and admin, and tokens for them.

use anyhow::Context as _;
use chrono::TimeDelta;
use lockstep_api::{OrganisationId, PrincipalId, ProjectId, Role, TokenId};
use lockstep_service::Clock;
use serde::Serialize;

use crate::app::Random;
use crate::config::InitArgs;
use crate::db::Db;
use crate::projects::store as projects;
use crate::tokens::secret::{Minted, TokenKind};
use crate::tokens::store;

/// The principal that `init` makes.
const ADMIN: &str = "admin";
/// Name of the tokens that `init` makes.
const TOKEN_NAME: &str = "init";
/// How long machines may join with the token.
const JOIN_TIME: TimeDelta = TimeDelta::hours(24);

/// What `init` prints. The texts of the tokens are nowhere else.
#[derive(Serialize)]
pub struct Credentials {
    /// The organisation.
    pub organisation_id: OrganisationId,
    /// The project.
    pub project_id: ProjectId,
    /// An admin's access token: `lsk_…`.
    pub token: String,
    /// `lsj_…`
    pub join_token: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("project_id", &self.project_id).finish_non_exhaustive()
    }
}

/// Migrates, and makes what is absent. The tokens are fresh with every call.
///
/// # Errors
/// A database that does not answer.
pub async fn init(args: &InitArgs) -> anyhow::Result<Credentials> {
    Db::migrate(&args.database_url).await.context("migrating the database")?;
    let db = Db::connect(&args.database_url).await.context("connecting to the database")?;
    let credentials = first_project(&db, &Clock::system(), &Random::system(), &args.name).await;
    db.close().await;
    credentials.context("making the first project")
}

/// Organisation and project of that name with an admin, and fresh tokens.
///
/// # Errors
/// A database that does not answer.
pub async fn first_project(
    db: &Db,
    clock: &Clock,
    random: &Random,
    name: &str,
) -> sqlx::Result<Credentials> {
    let now = clock.now();
    let ids = || (clock.unix_ms(), random.bytes());
    let mut tx = db.system().await?;
    let (time, bytes) = ids();
    let organisation_id =
        projects::ensure_organisation(&mut tx, OrganisationId::new(time, bytes), name, now).await?;
    let (time, bytes) = ids();
    let project_id =
        projects::ensure_project(&mut tx, organisation_id, ProjectId::new(time, bytes), name, now)
            .await?;
    let principal_id = match projects::find_member(&mut tx, project_id, ADMIN, Role::Admin).await? {
        Some(id) => id,
        None => {
            let (time, bytes) = ids();
            let id = PrincipalId::new(time, bytes);
            projects::insert_member(&mut tx, project_id, id, ADMIN, Role::Admin, now).await?;
            id
        }
    };
    let (access, join) =
        (Minted::new(TokenKind::Access, random), Minted::new(TokenKind::Join, random));
    let (time, bytes) = ids();
    let token = store::NewAccessToken {
        token_id: TokenId::new(time, bytes),
        project_id,
        principal_id,
        name: TOKEN_NAME,
        public_id: &access.public_id,
        secret_hash: &access.hash,
        role: Role::Admin,
        created_at: now,
        expires_at: None,
    };
    store::insert_access_token(&mut tx, &token).await?;
    store::insert_join_token(
        &mut tx,
        &join.public_id,
        &join.hash,
        organisation_id,
        now,
        now + JOIN_TIME,
    )
    .await?;
    tx.commit().await?;
    Ok(Credentials { organisation_id, project_id, token: access.text, join_token: join.text })
}
