//! Tries at jobs: who runs them, what their nodes report, and how the core's decisions are carried out.

pub(crate) mod arrival;
pub(crate) mod assignment;
pub(crate) mod drive;
pub(crate) mod http;
pub(crate) mod offers;
pub(crate) mod preempt;
pub(crate) mod reconcile;
pub(crate) mod report;
pub(crate) mod shun;
pub(crate) mod slots;
pub(crate) mod store;
