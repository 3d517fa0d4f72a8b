//! The table `failure`: verdicts and their effects.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, Blame, FailureCode, FailureId, FailureReport, FailureView, Generation, JobId,
    NodeId, Phase, ProjectId, Rank, RankExit, Step,
};
use lockstep_core::{Failure, Standing, Suspect};
use serde_json::Value;
use sqlx::types::{Json, Uuid};
use sqlx::{PgConnection, query, query_as};

use crate::progress::text::{MESSAGE_BYTES, storable, storable_evidence};

/// Verdicts shown of one job, newest first.
const VERDICTS_SHOWN: i64 = 200;

/// A failure to be filed.
#[derive(Debug)]
pub(crate) struct NewFailure<'a> {
    pub(crate) id: FailureId,
    pub(crate) project_id: ProjectId,
    pub(crate) job_id: JobId,
    pub(crate) attempt_id: AttemptId,
    pub(crate) generation: Generation,
    pub(crate) failure: &'a Failure,
    pub(crate) standing: Standing,
}

/// Files a failure.
pub(crate) async fn insert_failure(
    db: &mut PgConnection,
    new: NewFailure<'_>,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let NewFailure { id, project_id, job_id, attempt_id, generation, failure, standing } = new;
    let FailureReport { code, rank, exit, step, phase, message, evidence } = &failure.report;
    query!(
        "INSERT INTO failure (failure_id, project_id, job_id, attempt_id, generation, is_effect, code, blame, rank,
                              node_id, signal, exit_code, step, phase, message, evidence, at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
        id as FailureId,
        project_id as ProjectId,
        job_id as JobId,
        attempt_id as AttemptId,
        generation as Generation,
        standing == Standing::Effect,
        *code as FailureCode,
        code.blame() as Blame,
        rank.map(|rank| rank.0),
        failure.node.map(|node| node.0),
        exit.and_then(|exit| exit.signal),
        exit.and_then(|exit| exit.code),
        step.or(exit.map(|exit| exit.step)).map(|step| step.0),
        phase.or(exit.map(|exit| exit.phase)) as Option<Phase>,
        storable(message, MESSAGE_BYTES),
        storable_evidence(evidence),
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The first symptom of each attempt whose present generation has no verdict.
pub(crate) async fn suspects(
    db: &mut PgConnection,
    attempts: &[AttemptId],
) -> sqlx::Result<HashMap<AttemptId, Suspect>> {
    let ids: Vec<Uuid> = attempts.iter().map(|id| id.0).collect();
    let rows = query!(
        r#"
        SELECT DISTINCT ON (attempt_id)
            attempt_id AS "attempt_id: AttemptId", code AS "code: FailureCode", rank AS "rank: Rank",
            node_id AS "node_id: NodeId", signal, exit_code, step AS "step: Step", phase AS "phase: Phase", message,
            evidence AS "evidence: Json<Value>", at,
            ARRAY(SELECT DISTINCT t.node_id FROM failure AS t
                  WHERE t.attempt_id = failure.attempt_id AND t.generation = failure.generation
                    AND t.node_id IS NOT NULL) AS "told_by!"
        FROM failure
        WHERE attempt_id = ANY($1)
          AND generation = (SELECT a.generation FROM attempt AS a WHERE a.attempt_id = failure.attempt_id)
          AND NOT EXISTS (SELECT FROM failure AS v
                          WHERE v.attempt_id = failure.attempt_id AND v.generation = failure.generation
                            AND NOT v.is_effect)
        ORDER BY attempt_id, failure_no
        "#,
        &ids,
    )
    .fetch_all(db)
    .await?;
    let suspects = rows.into_iter().map(|row| {
        let has_left = row.signal.is_some() || row.exit_code.is_some();
        let exit = has_left.then(|| RankExit {
            code: row.exit_code,
            signal: row.signal,
            phase: row.phase.unwrap_or(Phase::Starting),
            step: row.step.unwrap_or_default(),
            // Of a symptom: no rank that used too much memory is one.
            exceeded_memory_mib: None,
        });
        let report = FailureReport {
            code: row.code,
            rank: row.rank,
            exit,
            step: row.step,
            phase: row.phase,
            message: row.message,
            evidence: row.evidence.0,
        };
        let failure = Failure { report, node: row.node_id };
        let told_by = row.told_by.into_iter().map(NodeId).collect();
        (row.attempt_id, Suspect { since: row.at, failure, told_by })
    });
    Ok(suspects.collect())
}

/// The first symptom of a generation without a verdict becomes it.
pub(crate) async fn promote_suspect(
    db: &mut PgConnection,
    attempt: AttemptId,
    generation: Generation,
) -> sqlx::Result<()> {
    query!(
        "UPDATE failure SET is_effect = false
         WHERE failure_id = (SELECT failure_id FROM failure WHERE attempt_id = $1 AND generation = $2
                             ORDER BY failure_no LIMIT 1)",
        attempt as AttemptId,
        generation as Generation,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The last two verdicts on a job, as far as they can be compared: the last one, and the one before it.
pub(crate) async fn last_two(
    db: &mut PgConnection,
    job: JobId,
) -> sqlx::Result<Option<(FailureReport, FailureReport)>> {
    let rows = query!(
        r#"
        SELECT code AS "code: FailureCode", rank AS "rank: Rank", step AS "step: Step", message,
               evidence AS "evidence: Json<Value>"
        FROM failure WHERE job_id = $1 AND NOT is_effect ORDER BY failure_no DESC LIMIT 2
        "#,
        job as JobId,
    )
    .fetch_all(db)
    .await?;
    let mut reports = rows.into_iter().map(|row| FailureReport {
        code: row.code,
        rank: row.rank,
        exit: None,
        step: row.step,
        phase: None,
        message: row.message,
        evidence: row.evidence.0,
    });
    Ok(reports.next().zip(reports.next()))
}

/// The verdicts on a job's attempts, newest first. Their effects are left out.
pub(crate) async fn verdicts(db: &mut PgConnection, job: JobId) -> sqlx::Result<Vec<FailureView>> {
    query_as!(
        FailureView,
        r#"
        SELECT
            failure_id AS "id: FailureId", attempt_id AS "attempt_id?: AttemptId",
            generation AS "generation: Generation", code AS "code: FailureCode", blame AS "blame: Blame",
            rank AS "rank: Rank", node_id AS "node_id: NodeId", signal, exit_code, step AS "step: Step",
            phase AS "phase: Phase", message, evidence, at
        FROM failure WHERE job_id = $1 AND NOT is_effect ORDER BY at DESC, failure_no DESC LIMIT $2
        "#,
        job as JobId,
        VERDICTS_SHOWN,
    )
    .fetch_all(db)
    .await
}
