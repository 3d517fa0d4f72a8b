//! What a node should run, in full: the answer to its poll.

use std::collections::BTreeMap;

use lockstep_api::{
    Assignment, DatasetFile, Digest, JobId, JobSpec, NodeId, PollResponse, ProjectId,
};
use sqlx::PgConnection;

use crate::app::App;
use crate::attempts::store::{self, Assigned};
use crate::checkpoints;
use crate::data;
use crate::jobs::store::lifecycle;
use crate::nodes;
use crate::problem::Problem;

/// The whole set of `node`. The version is read first: should the set change meanwhile, the next poll is answered at once.
pub(crate) async fn of_node(app: &App, node: NodeId) -> Result<PollResponse, Problem> {
    let mut tx = app.db.system().await?;
    let version = nodes::store::assignment_version(&mut tx, node).await?;
    let assigned = store::assigned(&mut tx, node).await?;
    let jobs: Vec<JobId> = assigned.iter().map(|assigned| assigned.job_id).collect();
    let specs: BTreeMap<JobId, JobSpec> =
        lifecycle::specs(&mut tx, &jobs).await?.into_iter().collect();
    let mut assignments = Vec::with_capacity(assigned.len());
    for assigned in assigned {
        let Some(spec) = specs.get(&assigned.job_id) else { continue };
        assignments.push(assignment(&mut tx, assigned, spec.clone()).await?);
    }
    tx.rollback().await?;
    Ok(PollResponse { version, assignments })
}

async fn assignment(
    db: &mut PgConnection,
    assigned: Assigned,
    spec: JobSpec,
) -> Result<Assignment, Problem> {
    let Assigned {
        attempt_id,
        project_id,
        job_id,
        generation,
        is_stopping,
        attempt_key,
        resume,
        world_size,
        ranks,
    } = assigned;
    let train_files = files(db, project_id, &spec.data.train).await?;
    let eval_files = match &spec.data.eval {
        Some(eval) => files(db, project_id, eval).await?,
        None => vec![],
    };
    let resume = match resume {
        Some(id) => checkpoints::store::resume_from(db, id).await?,
        None => None,
    };
    let (ranks, slot_index) = ranks.into_iter().unzip();
    Ok(Assignment {
        job_id,
        attempt_id,
        generation,
        is_stopping,
        world_size: u32::try_from(world_size).unwrap_or(0),
        ranks,
        slot_index,
        spec,
        train_files,
        eval_files,
        resume,
        attempt_key,
    })
}

/// A stored job names its datasets by digest, and they were there when it was submitted.
async fn files(
    db: &mut PgConnection,
    project: ProjectId,
    dataset: &str,
) -> Result<Vec<DatasetFile>, Problem> {
    let digest: Digest = dataset.parse().map_err(Problem::internal)?;
    let files = data::store::dataset_files(db, project, &digest).await?;
    files.ok_or_else(|| Problem::internal(format!("dataset {digest} of a stored job is gone")))
}
