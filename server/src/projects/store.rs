//! Everything the database knows of organisations, projects and their members. Tokens look up whom they stand for by
//! themselves, and the queue which organisation a job is of; no other module writes to these tables.

use chrono::{DateTime, Utc};
use lockstep_api::{OrganisationId, PrincipalId, ProjectId, Role};
use sqlx::{PgConnection, query, query_scalar};

/// The names behind a caller's ids.
pub(crate) async fn find_names(
    db: &mut PgConnection,
    principal_id: PrincipalId,
    project_id: ProjectId,
) -> sqlx::Result<Option<(String, String)>> {
    let row = query!(
        "SELECT principal.name AS principal, project.name AS project
         FROM member JOIN principal USING (principal_id) JOIN project USING (project_id)
         WHERE principal_id = $1 AND project_id = $2",
        principal_id as PrincipalId,
        project_id as ProjectId,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| (row.principal, row.project)))
}

/// A new principal, member of one project.
pub(crate) async fn insert_member(
    db: &mut PgConnection,
    project_id: ProjectId,
    principal_id: PrincipalId,
    name: &str,
    role: Role,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO principal (principal_id, name, created_at) VALUES ($1, $2, $3)",
        principal_id as PrincipalId,
        name,
        now,
    )
    .execute(&mut *db)
    .await?;
    query!(
        "INSERT INTO member (project_id, principal_id, role) VALUES ($1, $2, $3)",
        project_id as ProjectId,
        principal_id as PrincipalId,
        role as Role,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The organisation of that name, made if absent.
pub(crate) async fn ensure_organisation(
    db: &mut PgConnection,
    new_id: OrganisationId,
    name: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<OrganisationId> {
    query!(
        "INSERT INTO organisation (organisation_id, name, created_at) VALUES ($1, $2, $3)
         ON CONFLICT ON CONSTRAINT organisation_name_is_unique DO NOTHING",
        new_id as OrganisationId,
        name,
        now,
    )
    .execute(&mut *db)
    .await?;
    // Locked, so that two calls at once do not both make an admin.
    query_scalar!(
        r#"SELECT organisation_id AS "id: OrganisationId" FROM organisation WHERE name = $1 FOR UPDATE"#,
        name,
    )
    .fetch_one(db)
    .await
}

/// The project of that name, made if absent.
pub(crate) async fn ensure_project(
    db: &mut PgConnection,
    organisation: OrganisationId,
    new_id: ProjectId,
    name: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<ProjectId> {
    query!(
        "INSERT INTO project (project_id, organisation_id, name, created_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT ON CONSTRAINT project_name_is_unique_in_organisation DO NOTHING",
        new_id as ProjectId,
        organisation as OrganisationId,
        name,
        now,
    )
    .execute(&mut *db)
    .await?;
    query_scalar!(
        r#"SELECT project_id AS "id: ProjectId" FROM project WHERE organisation_id = $1 AND name = $2"#,
        organisation as OrganisationId,
        name,
    )
    .fetch_one(db)
    .await
}

/// What a principal is called.
pub(crate) async fn principal_name(
    db: &mut PgConnection,
    principal: PrincipalId,
) -> sqlx::Result<String> {
    query_scalar!("SELECT name FROM principal WHERE principal_id = $1", principal as PrincipalId)
        .fetch_one(db)
        .await
}

/// A member of that name with that role.
pub(crate) async fn find_member(
    db: &mut PgConnection,
    project: ProjectId,
    name: &str,
    role: Role,
) -> sqlx::Result<Option<PrincipalId>> {
    query_scalar!(
        r#"
        SELECT principal_id AS "id: PrincipalId" FROM member JOIN principal USING (principal_id)
        WHERE project_id = $1 AND name = $2 AND role = $3
        ORDER BY principal.created_at LIMIT 1
        "#,
        project as ProjectId,
        name,
        role as Role,
    )
    .fetch_optional(db)
    .await
}
