//! The schema keeps its promises: row-level security everywhere, one spelling of every state.

use crate::common::Server;
use lockstep_api::{
    AttemptOutcome, AttemptState, Blame, DeviceKind, FailureCode, JobEventKind, JobState, LogLevel,
    LogSource, Phase, Role, StopPurpose,
};
use sqlx::{AssertSqlSafe, PgPool};

/// Tables that belong to no project: who there is, and the organisation's machines.
const WITHOUT_PROJECT: [&str; 8] = [
    "_sqlx_migrations",
    "join_token",
    "node",
    "node_blame",
    "node_quarantine",
    "organisation",
    "principal",
    "slot",
];

#[derive(sqlx::FromRow)]
#[expect(clippy::struct_excessive_bools, reason = "columns of the catalogue")]
struct Table {
    name: String,
    is_enabled: bool,
    is_forced: bool,
    has_project: bool,
    policies: Option<Vec<String>>,
}

#[sqlx::test(migrations = "../migrations")]
async fn every_table_with_a_project_forces_row_level_security(pool: PgPool) {
    let tables: Vec<Table> = sqlx::query_as(
        "SELECT c.relname::text AS name, c.relrowsecurity AS is_enabled, c.relforcerowsecurity AS is_forced,
                EXISTS (SELECT FROM pg_attribute AS a
                        WHERE a.attrelid = c.oid AND a.attname = 'project_id' AND a.attnotnull) AS has_project,
                (SELECT array_agg(p.polname::text ORDER BY p.polname) FROM pg_policy AS p WHERE p.polrelid = c.oid) AS policies
         FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    assert!(20 < tables.len());
    for Table { name, is_enabled, is_forced, has_project, policies } in tables {
        assert!(!name.starts_with("pg_"), "{name}");
        if WITHOUT_PROJECT.contains(&name.as_str()) {
            assert!(!has_project, "{name} has a project now");
            continue;
        }
        assert!(has_project && is_enabled && is_forced, "{name}");
        assert_eq!(
            policies,
            Some(vec!["all_projects".to_owned(), "own_project".to_owned()]),
            "{name}"
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_roles_own_nothing_and_bypass_nothing(pool: PgPool) {
    let free: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_roles AS r
         WHERE r.rolname IN ('lockstep_app', 'lockstep_system')
           AND NOT r.rolsuper AND NOT r.rolbypassrls AND NOT r.rolcanlogin
           AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.relowner = r.oid)",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(free, 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_transaction_of_a_project_sees_that_project_alone_and_leaves_nothing_behind(
    pool: PgPool,
) {
    let server = Server::new(pool).await;
    let other = server.other_project().await;
    let count = "SELECT count(*) FROM access_token";
    let mut tx = server.app.db.project(other.project_id).await.unwrap();
    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(&mut *tx).await.unwrap(), 1);
    let foreign = sqlx::query("UPDATE access_token SET name = 'x' WHERE project_id = $1")
        .bind(server.first.project_id)
        .execute(&mut *tx)
        .await
        .unwrap();
    assert_eq!(foreign.rows_affected(), 0);
    let moved =
        sqlx::query("UPDATE access_token SET project_id = $1").bind(server.first.project_id);
    assert!(moved.execute(&mut *tx).await.is_err(), "a row cannot be moved into another project");
    tx.rollback().await.unwrap();

    let mut tx = server.app.db.project(other.project_id).await.unwrap();
    for secret in
        ["SELECT token_hash FROM node", "SELECT * FROM join_token", "DELETE FROM audit_event"]
    {
        let mut nested = sqlx::Acquire::begin(&mut *tx).await.unwrap();
        assert!(sqlx::query(secret).execute(&mut *nested).await.is_err(), "{secret}");
        nested.rollback().await.unwrap();
    }
    tx.commit().await.unwrap();

    let mut tx = server.app.db.system().await.unwrap();
    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(&mut *tx).await.unwrap(), 2);
    let left: Option<String> =
        sqlx::query_scalar("SELECT nullif(current_setting('lockstep.project', true), '')")
            .fetch_one(&mut *tx)
            .await
            .unwrap();
    assert_eq!(left, None);
}

async fn labels(pool: &PgPool, name: &str) -> Vec<String> {
    let sql = format!("SELECT unnest(enum_range(NULL::public.{name}))::text");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(pool).await.unwrap()
}

macro_rules! same_labels {
    ($pool:expr, $seen:expr, $($name:ident),+) => {$(
        let ours: Vec<String> = $name::ALL.iter().map(|value| value.as_str().to_owned()).collect();
        assert_eq!(labels($pool, $name::SQL_TYPE).await, ours, "{}", $name::SQL_TYPE);
        $seen.push($name::SQL_TYPE.to_owned());
    )+};
}

#[sqlx::test(migrations = "../migrations")]
async fn the_labels_of_every_enum_are_those_of_the_api(pool: PgPool) {
    let mut seen = vec!["job_event_kind".to_owned()];
    same_labels!(
        &pool,
        seen,
        AttemptOutcome,
        AttemptState,
        Blame,
        DeviceKind,
        FailureCode,
        JobState,
        LogLevel,
        LogSource,
        Phase,
        Role,
        StopPurpose
    );
    let kinds = [
        JobEventKind::State,
        JobEventKind::Metrics,
        JobEventKind::Log,
        JobEventKind::Failure,
        JobEventKind::Checkpoint,
    ];
    let ours: Vec<String> = kinds
        .iter()
        .map(|kind| serde_json::to_value(kind).unwrap().as_str().unwrap().to_owned())
        .collect();
    assert_eq!(labels(&pool, "job_event_kind").await, ours);
    seen.sort();
    let mut there: Vec<String> = sqlx::query_scalar(
        "SELECT typname::text FROM pg_type WHERE typtype = 'e' AND typnamespace = 'public'::regnamespace",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    there.sort();
    assert_eq!(there, seen, "every enum of the schema is compared");
}
