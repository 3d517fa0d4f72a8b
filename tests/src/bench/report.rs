//! What every benchmark here answers: a table for people, and with `--json` one object on the last line.

use anyhow::Context as _;
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
    /// Whether the target holds, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<bool>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<Figure>,
}

/// What a row should reach; without, it is for information.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Target {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ours: Option<f64>,
}

/// What a peer did in a row's case.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    /// Median of the runs in which it happened at all.
    pub(crate) peer: Option<f64>,
    pub(crate) peer_runs: usize,
    /// Runs in which it never happened.
    pub(crate) peer_failed: usize,
    pub(crate) peer_name: String,
    /// `peer` by `ours`.
    pub(crate) ratio: Option<f64>,
}

impl Figure {
    fn head() -> String {
        format!(" {:>9} {:>8} {:>8}  {}", "peer", "ratio", "failed", "peer's name")
    }

    fn columns(&self) -> String {
        let known = |it: Option<f64>| it.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
        let failed = format!("{} of {}", self.peer_failed, self.peer_runs);
        let (peer, ratio) = (known(self.peer), known(self.ratio));
        format!(" {peer:>9} {ratio:>8} {failed:>8}  {}", self.peer_name)
    }
}

impl Row {
    /// The median of some values, of which there is at least one, and the most that it should be.
    pub(crate) fn of(
        case: &'static str,
        unit: &'static str,
        mut values: Vec<f64>,
        most: Option<f64>,
    ) -> anyhow::Result<Self> {
        values.sort_by(f64::total_cmp);
        let ours = median(&values).with_context(|| format!("{case}: no run"))?;
        let (runs, min, max) = (values.len(), values[0], values[values.len() - 1]);
        let (target, holds) = (Target { ours: most }, most.map(|most| ours <= most));
        Ok(Self { case, unit, ours, runs, min, max, target, holds, peer: None })
    }
}

/// Shows the rows.
pub(crate) fn print(bench: &'static str, rows: Vec<Row>, json: bool) -> anyhow::Result<()> {
    let has_peer = rows.iter().any(|row| row.peer.is_some());
    let peer = if has_peer { Figure::head() } else { String::new() };
    say(&format!("{:30} {:>9} {:>9} {:>9} {:>10}{peer}", "case", "p50", "min", "max", "target"));
    for row in &rows {
        let Row { case, unit, ours, min, max, target, peer, .. } = row;
        let target = target.ours.map_or_else(|| "-".to_owned(), |most| format!("<= {most} {unit}"));
        let peer = peer.as_ref().map_or_else(String::new, Figure::columns);
        say(&format!("{case:30} {ours:>9.2} {min:>9.2} {max:>9.2} {target:>10}{peer}"));
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
