//! What a node should run, in full: the answer to its poll.

use std::collections::BTreeMap;

use lockstep_api::{
    AssignedNetwork, Assignment, AttemptId, DatasetFile, Digest, JobId, JobSpec, NodeId,
    PollResponse, ProjectId, Rank,
};
use sqlx::PgConnection;

use crate::app::App;
use crate::attempts::store::{self, Assigned, Peer};
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
    let attempts: Vec<AttemptId> = assigned.iter().map(|assigned| assigned.attempt_id).collect();
    let mut peers = store::peers(&mut tx, &attempts).await?;
    let mut assignments = Vec::with_capacity(assigned.len());
    for assigned in assigned {
        let Some(spec) = specs.get(&assigned.job_id) else { continue };
        let network = network(&peers.remove(&assigned.attempt_id).unwrap_or_default());
        assignments.push(assignment(&mut tx, assigned, spec.clone(), network).await?);
    }
    tx.rollback().await?;
    Ok(PollResponse { version, assignments })
}

async fn assignment(
    db: &mut PgConnection,
    assigned: Assigned,
    spec: JobSpec,
    network: Option<AssignedNetwork>,
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
        steps_reported,
        faults_done,
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
    Ok(Assignment {
        job_id,
        attempt_id,
        generation,
        is_stopping,
        world_size: world_size.unsigned_abs(),
        ranks,
        spec,
        train_files,
        eval_files,
        resume,
        steps_reported,
        faults_done,
        attempt_key,
        network,
    })
}

/// How ranks, in order, reach each other; `None` when they share one memory.
fn network(peers: &[Peer]) -> Option<AssignedNetwork> {
    let nodes: Vec<Vec<Rank>> = peers
        .chunk_by(|a, b| a.memory_index == b.memory_index)
        .map(|peers| peers.iter().map(|peer| peer.rank).collect())
        .collect();
    if nodes.len() <= 1 {
        return None;
    }
    // One that has not said where it is may be anywhere.
    let is_together = |peer: &Peer| peer.host.is_some() && peer.host == peers[0].host;
    Some(AssignedNetwork {
        nodes,
        spans_hosts: !peers.iter().all(is_together),
        endpoints: peers.iter().map(|peer| peer.endpoints.clone()).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(rank: i32, memory_index: i32, host: Option<&str>, endpoint: Option<&str>) -> Peer {
        Peer {
            rank: Rank(rank),
            memory_index,
            host: host.map(str::to_owned),
            endpoints: endpoint.map(|it| vec![it.to_owned()]),
        }
    }

    #[test]
    fn ranks_of_one_memory_have_no_network() {
        assert_eq!(network(&[]), None);
        assert_eq!(network(&[peer(0, 0, None, None), peer(1, 0, None, None)]), None);
    }

    #[test]
    fn endpoints_appear_when_all_are_known_and_hosts_are_compared() {
        let (a, b) = (Some("a"), Some("b"));
        let some = network(&[
            peer(0, 0, a, Some("10.0.0.1:7")),
            peer(1, 0, a, Some("10.0.0.1:8")),
            peer(2, 1, a, None),
        ]);
        let nodes = vec![vec![Rank(0), Rank(1)], vec![Rank(2)]];
        assert_eq!(some, Some(AssignedNetwork { nodes, spans_hosts: false, endpoints: None }));
        let all = network(&[peer(0, 0, a, Some("10.0.0.1:7")), peer(1, 1, b, Some("10.0.0.2:7"))]);
        let all = all.unwrap();
        assert!(all.spans_hosts);
        assert_eq!(all.endpoints.unwrap(), [["10.0.0.1:7"], ["10.0.0.2:7"]]);
        let unknown = network(&[peer(0, 0, None, None), peer(1, 1, None, None)]).unwrap();
        assert!(unknown.spans_hosts, "nodes that have not said where they are may be anywhere");
    }
}
