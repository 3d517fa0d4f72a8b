//! Nodes that are to become free: what runs there is stopped, and goes on elsewhere.

use lockstep_api::NodeId;
use lockstep_core::JobEvent;

use crate::app::App;
use crate::attempts::drive::{Drive, concerned};
use crate::problem::Problem;

/// Asks the attempts with a rank on `node` to stop after a checkpoint; their jobs are queued again, for nothing.
pub(crate) async fn clear(app: &App, node: NodeId) -> Result<(), Problem> {
    for (attempt, job) in concerned(app, node).await? {
        let mut tx = app.db.system().await?;
        let mut drive = Drive::lock(app, &mut tx, &[job], &[attempt], &[node]).await?;
        let Some(there) = drive
            .attempt(attempt)
            .filter(|it| it.core.stage.is_at_work() && it.nodes().contains(&node))
        else {
            continue;
        };
        let because = format!("moved: node {} is to be free", there.core.gang.node_name(node));
        drive.ask(&mut tx, job, JobEvent::MoveRequested, &because).await?;
        let announcement = drive.finish(&mut tx).await?;
        tx.commit().await?;
        announcement.send(&app.wakeup);
    }
    Ok(())
}
