//! From the spool to the server, oldest first.

use std::sync::Arc;

use lockstep_api::{NumberedReport, ProblemCode, ReportRequest};
use lockstep_client::ClientError;
use lockstep_client::retry::{Backoff, Policy};
use tokio_util::sync::CancellationToken;

use crate::node::{Node, Note};
use lockstep_service::chain;

/// Most reports of one request.
const BATCH_COUNT: usize = 500;
/// Most bytes of one request; the server takes 4 MiB.
const BATCH_BYTES: u64 = 3 << 20;

/// Takes what the server says it has seen, once, before anything is numbered. Keeps trying.
///
/// # Errors
/// When the server refuses for good.
pub(crate) async fn settle(node: &Node) -> Result<(), ClientError> {
    let mut backoff = Backoff::new(Policy::PATIENT);
    loop {
        let answer = node.server.client().report(&ReportRequest { reports: Vec::new() }).await;
        match node.server.note(answer) {
            Ok(answer) => {
                node.spool.adopt(answer.acked_seq);
                return Ok(());
            }
            Err(error) => match backoff.next_delay() {
                Some(delay) if error.is_retryable() => tokio::time::sleep(delay).await,
                _ => return Err(error),
            },
        }
    }
}

/// Ships until `end`.
pub(crate) async fn ship(node: Arc<Node>, end: CancellationToken) {
    let mut newest = node.spool.newest();
    let mut backoff = Backoff::new(Policy::PATIENT);
    let mut batch_count = BATCH_COUNT;
    loop {
        newest.mark_unchanged();
        let reports = match node.spool.next_batch(batch_count, BATCH_BYTES) {
            Ok(reports) => reports,
            Err(error) => {
                tracing::error!(%error, "the spool cannot be read");
                Vec::new()
            }
        };
        let Some(last) = reports.last().map(|it| it.seq) else {
            tokio::select! {
                changed = newest.changed() => if changed.is_err() { return },
                () = end.cancelled() => return,
            }
            continue;
        };
        if end.run_until_cancelled(node.server.reachable()).await.is_none() {
            return;
        }
        let shipped = tokio::select! {
            shipped = hand_over(&node, reports) => shipped,
            () = node.server.cut_off() => continue,
            () = end.cancelled() => return,
        };
        let error = match shipped {
            Ok(()) => {
                backoff.reset();
                batch_count = BATCH_COUNT;
                continue;
            }
            Err(error) => error,
        };
        if is_about_reports(&error) {
            // One of them is at fault: alone it is found, and given up so that the others can go.
            if batch_count == 1 {
                tracing::error!(seq = last, error = %chain(&error), "the server refuses a report for good: given up");
                node.spool.ack(last);
            }
            batch_count = 1;
            continue;
        }
        tracing::warn!(error = %chain(&error), "cannot hand over reports yet");
        let delay = backoff.next_delay().unwrap_or(Policy::PATIENT.max_delay);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = end.cancelled() => return,
        }
    }
}

async fn hand_over(node: &Node, reports: Vec<NumberedReport>) -> Result<(), ClientError> {
    let answer = node.server.client().report(&ReportRequest { reports }).await;
    let answer = node.server.note(answer)?;
    for fence in answer.lost {
        if node.notes.send(Note::Lost(fence)).is_err() {
            tracing::debug!("the session is over");
        }
    }
    node.spool.ack(answer.acked_seq);
    Ok(())
}

/// Whether the server refuses what the reports say, and would refuse it again.
fn is_about_reports(error: &ClientError) -> bool {
    match error.code() {
        Some(ProblemCode::InvalidRequest | ProblemCode::TooLarge | ProblemCode::Conflict) => true,
        Some(
            ProblemCode::Unauthenticated
            | ProblemCode::Forbidden
            | ProblemCode::NotFound
            | ProblemCode::MethodNotAllowed
            | ProblemCode::IdempotencyMismatch
            | ProblemCode::Fenced
            | ProblemCode::UnsupportedMediaType
            | ProblemCode::JobRefused
            | ProblemCode::Unavailable
            | ProblemCode::Internal,
        )
        | None => false,
    }
}
