//! What every benchmark here answers: a table for people, and with `--json` one object on the last line.

use serde::Serialize;

/// What a benchmark answers.
#[derive(Debug, Serialize)]
struct Table {
    bench: &'static str,
    machine: Machine,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    cpu: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    pub(crate) runs: usize,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) target: Target,
    pub(crate) holds: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Target {
    pub(crate) ours: f64,
}

/// Shows the rows.
pub(crate) fn print(bench: &'static str, rows: Vec<Row>, json: bool) -> anyhow::Result<()> {
    say(&format!("{:30} {:>9} {:>9} {:>9} {:>10}", "case", "p50", "min", "max", "target"));
    for row in &rows {
        let Row { case, unit, ours, min, max, target, .. } = row;
        let target = format!("<= {} {unit}", target.ours);
        say(&format!("{case:30} {ours:>9.2} {min:>9.2} {max:>9.2} {target:>10}"));
    }
    if json {
        say(&serde_json::to_string(&Table { bench, machine: machine(), rows })?);
    }
    Ok(())
}

/// The middle of numbers in order.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

fn machine() -> Machine {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':'])).to_owned();
    Machine { cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get), cpu }
}

/// A line for people.
#[expect(clippy::print_stdout, reason = "a benchmark's result is for standard output")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
