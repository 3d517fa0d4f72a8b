//! The table `loose_object`: objects of the chunk store that no chunk refers to.
//!
//! # Every object is named by one row
//!
//! An object is announced here before it is put, and claimed by the transaction that makes it a chunk's; a chunk that is let
//! go of leaves its object here. Whatever crashes in between, the object is in one table or the other, so it is found and
//! removed without ever listing the store. URLs are never used twice, so a removal cannot meet a new object; and one that
//! could still be claimed is not removed, since a claim ends some time before that.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::ProjectId;
use sqlx::{PgConnection, query, query_scalar};

/// How long an announced object may take to become a chunk's.
const CLAIM_TIME: TimeDelta = TimeDelta::minutes(30);
/// When an announced object that nobody claimed is removed: clocks of replicas differ by less than what lies between.
const ANNOUNCED_TIME: TimeDelta = TimeDelta::minutes(60);
/// How long what was let go of stays: longer than a read that had begun may take.
const READ_TIME: TimeDelta = TimeDelta::minutes(5);
/// Objects that one look finds.
const LOOKED_AT: i64 = 200;

/// Writes down that an object is about to be put.
pub(crate) async fn announce(
    db: &mut PgConnection,
    project: ProjectId,
    url: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO loose_object (url, project_id, claim_before, remove_after) VALUES ($1, $2, $3, $4)",
        url,
        project as ProjectId,
        now + CLAIM_TIME,
        now + ANNOUNCED_TIME,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Whether an announced object was there to be claimed.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    Held,
    /// It took too long: the object may be gone, and has to be put again.
    TooLate,
}

/// Stores a chunk whose bytes are the announced object. Another's that was quicker stays, and this object is let go of.
pub(crate) async fn put_chunk(
    db: &mut PgConnection,
    project: ProjectId,
    digest: &str,
    url: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<Claim> {
    let claimed = query!(
        "DELETE FROM loose_object WHERE project_id = $1 AND url = $2 AND $3 < claim_before",
        project as ProjectId,
        url,
        now,
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    if claimed != 1 {
        return Ok(Claim::TooLate);
    }
    let inserted = query!(
        "INSERT INTO chunk (project_id, digest, object_url, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        project as ProjectId,
        digest,
        url,
        now,
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    if inserted == 0 {
        let_go(db, project, &[url.to_owned()], now).await?;
    }
    Ok(Claim::Held)
}

/// Writes down that no chunk refers to these objects any more.
pub(crate) async fn let_go(
    db: &mut PgConnection,
    project: ProjectId,
    urls: &[String],
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO loose_object (url, project_id, claim_before, remove_after) SELECT url, $2, $3, $4 FROM unnest($1::text[]) AS it (url)",
        urls,
        project as ProjectId,
        now,
        now + READ_TIME,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Objects of the store at `base` that are to be removed now.
pub(crate) async fn due(
    db: &mut PgConnection,
    base: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<String>> {
    query_scalar!(
        "SELECT url FROM loose_object WHERE remove_after <= $1 AND starts_with(url, $2) ORDER BY remove_after, url LIMIT $3",
        now,
        format!("{base}/"),
        LOOKED_AT,
    )
    .fetch_all(db)
    .await
}

/// What could not be removed is tried again later, so that it does not stand in the way of others.
pub(crate) async fn postpone(
    db: &mut PgConnection,
    url: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!("UPDATE loose_object SET remove_after = $2 WHERE url = $1", url, now + READ_TIME)
        .execute(db)
        .await
        .map(drop)
}

/// Forgets an object that was removed.
pub(crate) async fn forget(db: &mut PgConnection, url: &str) -> sqlx::Result<()> {
    query!("DELETE FROM loose_object WHERE url = $1", url).execute(db).await.map(drop)
}
