//! The table `ledger_entry`: which samples each step used.

use lockstep_api::{AttemptId, JobId, LedgerEntry, ProjectId, Step};
use sqlx::{PgConnection, query, query_as};

use super::BranchColumns;
use crate::attempts::store::Branch;

/// Most entries of one answer: steps of one job.
const ENTRIES_LISTED: i64 = 1_000_000;

/// Writes entries down. An entry that is there already stays as it is.
pub(crate) async fn insert_entries(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
    attempt: AttemptId,
    entries: &[LedgerEntry],
) -> sqlx::Result<()> {
    let steps: Vec<i64> = entries.iter().map(|e| e.step.0).collect();
    let data_epochs: Vec<i64> = entries.iter().map(|e| e.data_epoch).collect();
    let first_positions: Vec<i64> = entries.iter().map(|e| e.first_position).collect();
    let sample_counts: Vec<i64> = entries.iter().map(|e| e.sample_count).collect();
    query!(
        "INSERT INTO ledger_entry (project_id, job_id, attempt_id, step, data_epoch, first_position, sample_count)
         SELECT $1, $2, $3, e.step, e.data_epoch, e.first_position, e.sample_count
         FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
              AS e (step, data_epoch, first_position, sample_count)
         ON CONFLICT DO NOTHING",
        project as ProjectId,
        job as JobId,
        attempt as AttemptId,
        &steps,
        &data_epochs,
        &first_positions,
        &sample_counts,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The entries that count, ordered by step.
pub(crate) async fn ledger(
    db: &mut PgConnection,
    job: JobId,
    branch: &[Branch],
) -> sqlx::Result<Vec<LedgerEntry>> {
    let columns = BranchColumns::new(branch);
    query_as!(
        LedgerEntry,
        r#"
        SELECT DISTINCT ON (e.step) e.step AS "step: Step", e.data_epoch, e.first_position, e.sample_count
        FROM ledger_entry AS e
        JOIN unnest($2::uuid[], $3::integer[], $4::bigint[]) AS b (attempt_id, number, counts_below) USING (attempt_id)
        WHERE e.job_id = $1 AND e.step < b.counts_below
        ORDER BY e.step, b.number DESC LIMIT $5
        "#,
        job as JobId,
        &columns.attempts,
        &columns.numbers,
        &columns.counts_below,
        ENTRIES_LISTED,
    )
    .fetch_all(db)
    .await
}
