//! Process groups: collectives in place over shared pages, with a deadline on every wait.
