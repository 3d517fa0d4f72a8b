//! One rank's process: the training loop, and the check at submit.

fn main() {}
