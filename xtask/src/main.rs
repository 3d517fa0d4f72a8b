//! House tasks: setup, demo, test, bench, arrows, generate.

fn main() {}
