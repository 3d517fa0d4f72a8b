//! Lets go of checkpoints that nothing keeps: the core says which, from what the rows say at the time of the look.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, CheckpointId, Step};
use lockstep_core::{Published, superfluous};
use sqlx::PgConnection;

use crate::checkpoints::store::{self, Kept};
use crate::jobs::store::lifecycle::LockedJob;
use crate::{attempts, data, progress};

/// What a look did.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retained {
    /// Something keeps each of them.
    All,
    /// Some are gone, with the bytes that nobody else refers to.
    Fewer,
}

/// Deletes what nothing keeps, under the job row's lock. Call in the transaction that published a newer one, after it is
/// there, so that there is never less than before.
///
/// The best are judged by what is known now: a value may have come after its checkpoint.
pub(crate) async fn retain(
    db: &mut PgConnection,
    job: &LockedJob,
    now: DateTime<Utc>,
) -> sqlx::Result<Retained> {
    let LockedJob { id, project_id, spec, .. } = job;
    let all = store::all(db, *id).await?;
    let places: Vec<(AttemptId, Step)> = all.iter().map(|it| (it.attempt_id, it.step)).collect();
    let values = match spec.checkpoint.keep_best {
        0 => HashMap::new(),
        _ => progress::store::values_at(db, &spec.checkpoint.best.metric, &places).await?,
    };
    let resumed: HashSet<CheckpointId> =
        attempts::store::resumed_from(db, *id).await?.into_iter().collect();
    let published = all.into_iter().map(|Kept { id, attempt_id, step, is_pinned }| Published {
        id,
        step,
        value: values.get(&(attempt_id, step)).copied(),
        is_held: is_pinned || resumed.contains(&id),
    });
    let gone = superfluous(&published.collect::<Vec<_>>(), &spec.checkpoint);
    if gone.is_empty() {
        return Ok(Retained::All);
    }
    let files = store::delete(db, &gone).await?;
    data::collect::collect_files(db, *project_id, &files, now).await?;
    Ok(Retained::Fewer)
}
