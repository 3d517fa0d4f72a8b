//! The table `log_line`: what ranks, guests and agents wrote, numbered within the job.

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, JobId, LogLevel, LogLine, LogSource, ProjectId, Rank, ReportedLine};
use sqlx::{PgConnection, query, query_as};

use crate::jobs::store::lifecycle;
use crate::progress::text::{LINE_BYTES, storable, storable_time};

/// Lines kept of one job; later ones are dropped.
const LINES_PER_JOB: i64 = 1_000_000;

/// Appends lines to a job's log. The job's row is locked.
pub(crate) async fn insert_lines(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
    attempt: AttemptId,
    lines: &[ReportedLine],
) -> sqlx::Result<()> {
    let count = i64::try_from(lines.len()).unwrap_or(i64::MAX);
    let first = lifecycle::take_log_numbers(db, job, count).await?;
    let room = usize::try_from((LINES_PER_JOB + 1).saturating_sub(first)).unwrap_or(0);
    let lines = &lines[..lines.len().min(room)];
    let ranks: Vec<Option<i32>> = lines.iter().map(|line| line.rank.map(|rank| rank.0)).collect();
    let sources: Vec<String> = lines.iter().map(|line| line.source.as_str().to_owned()).collect();
    let levels: Vec<String> = lines.iter().map(|line| line.level.as_str().to_owned()).collect();
    let times: Vec<DateTime<Utc>> = lines.iter().map(|line| storable_time(line.at)).collect();
    let texts: Vec<String> = lines.iter().map(|line| storable(&line.text, LINE_BYTES)).collect();
    query!(
        "INSERT INTO log_line (project_id, job_id, seq, attempt_id, rank, source, level, at, text)
         SELECT $1, $2, $3 + line.position - 1, $4, line.rank, line.source::log_source, line.level::log_level, line.at,
                line.text
         FROM unnest($5::integer[], $6::text[], $7::text[], $8::timestamptz[], $9::text[])
              WITH ORDINALITY AS line (rank, source, level, at, text, position)",
        project as ProjectId,
        job as JobId,
        first,
        attempt as AttemptId,
        &ranks as &[Option<i32>],
        &sources,
        &levels,
        &times,
        &texts,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Which lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogQuery {
    pub(crate) after: i64,
    pub(crate) limit: i64,
    /// The last `limit` lines instead of the first.
    pub(crate) tail: bool,
}

/// Lines of a job's log, in order.
pub(crate) async fn log(
    db: &mut PgConnection,
    job: JobId,
    wanted: LogQuery,
) -> sqlx::Result<Vec<LogLine>> {
    let LogQuery { after, limit, tail } = wanted;
    query_as!(
        LogLine,
        r#"
        SELECT seq AS "seq!", attempt_id AS "attempt_id!: AttemptId", rank AS "rank: Rank",
               source AS "source!: LogSource", level AS "level!: LogLevel", at AS "at!", text AS "text!"
        FROM (
            (SELECT seq, attempt_id, rank, source, level, at, text FROM log_line WHERE NOT $4 AND job_id = $1 AND $2 < seq ORDER BY seq LIMIT $3)
            UNION ALL
            (SELECT seq, attempt_id, rank, source, level, at, text FROM log_line WHERE $4 AND job_id = $1 AND $2 < seq ORDER BY seq DESC LIMIT $3)
        ) AS line
        ORDER BY seq
        "#,
        job as JobId,
        after,
        limit,
        tail,
    )
    .fetch_all(db)
    .await
}
