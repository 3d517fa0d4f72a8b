//! The live stream of one job, fed by its outbox.
