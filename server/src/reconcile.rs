//! The loop that looks after everything that nobody asks for. It takes no input: woken or timed, it looks at the rows and takes
//! the next step, so a restart is no special case.

use std::time::Duration;

use crate::app::App;
use crate::problem::Problem;
use crate::{attempts, checkpoints, data, nodes};

/// It looks at least so often.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);
/// And so often while something is about to be due.
const SOON: Duration = Duration::from_millis(50);
/// Pause after a pass that failed: the database is away.
const PAUSE: Duration = Duration::from_millis(500);

/// How often the chunk store is swept.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// Pause after a sweep that failed.
const SWEEP_PAUSE: Duration = Duration::from_secs(60);

/// Whether something is about to be due before the timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Soon {
    /// A symptom waits for its cause, or a job has almost waited long enough after a failure.
    Yes,
    /// Nothing.
    No,
}

/// Starts the loops; they end with the service.
pub fn spawn(app: &App) {
    let task = run(app.clone());
    app.shutdown.spawn(task);
    let task = run_sweeps(app.clone());
    app.shutdown.spawn(task);
}

async fn run_sweeps(app: App) {
    loop {
        let pause = match sweep(&app).await {
            Ok(()) => SWEEP_INTERVAL,
            Err(problem) => {
                complain(&problem);
                SWEEP_PAUSE
            }
        };
        if wait(&app, pause).await == Next::End {
            return;
        }
    }
}

/// Removes what chunks have left in the chunk store, once.
///
/// # Errors
/// A database or a store that does not answer; the next look tries again.
pub async fn sweep(app: &App) -> Result<(), Problem> {
    data::reconcile::sweep(app).await
}

async fn run(app: App) {
    while let Err(problem) = nodes::reconcile::extend_leases(&app).await {
        complain(&problem);
        if wait(&app, PAUSE).await == Next::End {
            return;
        }
    }
    let mut woken = app.wakeup.jobs();
    loop {
        // Changes from here on wake the loop again.
        woken.mark_unchanged();
        let pause = match pass(&app).await {
            Ok(Soon::Yes) => SOON,
            Ok(Soon::No) => INTERVAL,
            Err(problem) => {
                complain(&problem);
                if wait(&app, PAUSE).await == Next::End {
                    return;
                }
                continue;
            }
        };
        tokio::select! {
            next = wait(&app, pause) => if next == Next::End { return },
            // The sender lives as long as the app.
            _ = woken.changed() => {}
        }
        if app.shutdown.soft().is_cancelled() {
            return;
        }
    }
}

/// Looks at everything once: silent nodes, nodes to be freed, time, then the queue, which gets what the first two have freed;
/// then what nobody keeps any more.
///
/// # Errors
/// A database that does not answer; the next pass tries again.
pub async fn pass(app: &App) -> Result<Soon, Problem> {
    nodes::reconcile::expire(app).await?;
    nodes::reconcile::drain(app).await?;
    let soon = attempts::reconcile::tick(app).await?;
    let placed = attempts::reconcile::place(app).await?;
    checkpoints::reconcile::let_go(app).await?;
    Ok(if soon == Soon::Yes { soon } else { placed })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Look,
    End,
}

async fn wait(app: &App, pause: Duration) -> Next {
    tokio::select! {
        () = tokio::time::sleep(pause) => Next::Look,
        () = app.shutdown.soft().cancelled() => Next::End,
    }
}

fn complain(problem: &Problem) {
    tracing::error!(error = problem as &dyn std::error::Error, "a pass over the rows failed");
}
