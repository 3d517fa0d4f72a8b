//! One node's daemon: offers slots, starts and watches ranks, ships what they report.

fn main() {}
