//! Every decision of the control plane, without I/O: states, placement, leases, retries. Synchronous and deterministic.
//!
//! Nothing here reads a clock, a socket or a table. The server loads rows, asks a function of this crate what they
//! mean, writes the answer down under the job row's lock, and can ask again after a crash.

pub mod arrival;
pub mod attempt;
pub mod faults;
pub mod job;
pub mod lease;
pub mod ledger;
pub mod placement;
pub mod quarantine;
pub mod retention;
pub mod retry;
pub mod verdict;

pub use attempt::{
    Attempt, Effect, Event, Gang, Member, NewSlot, News, NodeLoss, Place, Readiness, Replacement,
    Seated, Stage, StepError, Suspect, Terms, Word,
};
pub use job::{Job, JobEffect, JobEvent, JobStepError, MAX_PREEMPTIONS, RetryBudget};
pub use lease::{LeaseTerms, LeaseTermsError};
pub use ledger::{complete_epochs, counts_below};
pub use lockstep_api::Timeouts;
pub use placement::{
    Closed, ClosedNode, ClosedSlots, Coming, Decision, GangAtWork, GivesWay, Growing, NodeOffer,
    Pass, Placed, Reason, Reclaimable, Refill, Request, SlotKey, SlotOffer, expect_preempted, grow,
    is_nearly_done, preempt, reclaim, refill, schedule, schedule_beside,
};
pub use quarantine::Quarantine;
pub use retention::{Published, superfluous};
pub use retry::{Outlook, Repeated, Waits};
pub use verdict::{Failure, Grade, Standing};
