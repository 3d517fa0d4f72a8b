//! What a benchmark answers: a table for people, one JSON object for programs.

use serde::Serialize;

use crate::out;

/// The object on the last line.
#[derive(Debug, Serialize)]
pub(crate) struct Report<R> {
    pub(crate) bench: &'static str,
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<R>,
}

/// What a row looks like to people.
pub(crate) trait TableRow: Serialize {
    /// Names of its columns.
    fn head() -> String;

    fn line(&self) -> String;
}

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cores: usize,
    cpu: String,
}

impl<R: TableRow> Report<R> {
    /// Says the table, and the object if it is asked for.
    pub(crate) fn say(&self, json: bool) -> anyhow::Result<()> {
        out::say(&R::head());
        for row in &self.rows {
            out::say(&row.line());
        }
        if json {
            out::say(&serde_json::to_string(self)?);
        }
        Ok(())
    }
}

/// The middle of numbers in ascending order.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// ", holds" or ", missed", where that is known.
pub(crate) fn verdict(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => ", holds",
        Some(false) => ", missed",
        None => "",
    }
}

/// This machine.
pub(crate) fn machine() -> Machine {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':'])).to_owned();
    Machine { cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get), cpu }
}
