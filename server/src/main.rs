//! The control plane: HTTP, SQL, reconcilers, wiring.

fn main() {}
