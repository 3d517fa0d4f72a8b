//! Everything the database knows of progress. Each table is named by one file of this folder and nowhere else.

mod events;
mod failures;
mod faults;
mod ledger;
mod log;
mod metrics;
mod timeline;

pub(crate) use events::{append_events, events_after};
pub(crate) use failures::{
    NewFailure, insert_failure, last_two, promote_suspect, suspects, verdicts,
};
pub(crate) use faults::{Injected, faults, insert_fault};
pub(crate) use ledger::{insert_entries, ledger};
pub(crate) use log::{LogQuery, insert_lines, log};
pub(crate) use metrics::{
    LOSS, Point, insert_points, latest_losses, latest_values, series, values_at,
};
pub(crate) use timeline::{Timed, TimelineQuery, insert_timed, timeline};

use lockstep_api::AttemptId;
use sqlx::types::Uuid;

use crate::attempts::store::Branch;

/// A branch as the three arrays that a query joins with.
struct BranchColumns {
    attempts: Vec<Uuid>,
    numbers: Vec<i32>,
    counts_below: Vec<i64>,
}

impl BranchColumns {
    fn new(branch: &[Branch]) -> Self {
        let uuid = |AttemptId(id): AttemptId| id;
        Self {
            attempts: branch.iter().map(|b| uuid(b.attempt_id)).collect(),
            numbers: branch.iter().map(|b| b.number).collect(),
            counts_below: branch.iter().map(|b| b.counts_below.map_or(i64::MAX, |s| s.0)).collect(),
        }
    }
}
