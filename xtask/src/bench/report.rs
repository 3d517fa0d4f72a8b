//! What a benchmark answers: a table for people, one JSON object for programs.

use serde::Serialize;

use super::cases::Target;
use crate::out;

/// The object on the last line.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cores: usize,
    cpu: String,
}

/// One case on so many threads. Times are milliseconds a step.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) unit: &'static str,
    /// Median.
    pub(crate) ours: f64,
    pub(crate) min: f64,
    pub(crate) runs: usize,
    /// Billions of floating-point operations a second.
    pub(crate) gflops: f64,
    /// The time that the machine's best matrix product would take for as much work.
    pub(crate) limit: f64,
    /// `limit` by `ours`.
    pub(crate) fraction: f64,
    pub(crate) peak_mib: f64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<Peer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<bool>,
}

/// The other side of a row.
#[derive(Debug, Serialize)]
pub(crate) struct Peer {
    /// Median.
    pub(crate) peer: f64,
    pub(crate) peer_min: f64,
    pub(crate) peer_name: String,
    /// `peer` by `ours`.
    pub(crate) ratio: f64,
    pub(crate) peer_peak_mib: f64,
    /// Our peak of memory by the peer's.
    pub(crate) peak_fraction: f64,
}

impl Report {
    /// Says the table, and the object if it is asked for.
    pub(crate) fn say(&self, json: bool) -> anyhow::Result<()> {
        out::say(&format!(
            "{:24} {:>9} {:>9} {:>6} {:>7} {:>9} {:>9} {:>9} {:>7}  target",
            "case",
            "ours ms",
            "peer ms",
            "ratio",
            "GF/s",
            "of limit",
            "ours MiB",
            "peer MiB",
            "part"
        ));
        for row in &self.rows {
            out::say(&row.line());
        }
        if json {
            out::say(&serde_json::to_string(self)?);
        }
        Ok(())
    }
}

impl Row {
    fn line(&self) -> String {
        let known = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        let of_peer = |get: fn(&Peer) -> String| known(self.peer.as_ref().map(get));
        let target = self.target.map(|Target { ratio, peak_fraction }| {
            let verdict = match self.holds {
                Some(true) => ", holds",
                Some(false) => ", missed",
                None => "",
            };
            format!("ratio >= {ratio}, part <= {peak_fraction:.2}{verdict}")
        });
        format!(
            "{:24} {:>9.2} {:>9} {:>6} {:>7.1} {:>8.0}% {:>9.0} {:>9} {:>7}  {}",
            self.case,
            self.ours,
            of_peer(|peer| format!("{:.2}", peer.peer)),
            of_peer(|peer| format!("{:.2}", peer.ratio)),
            self.gflops,
            self.fraction * 100.0,
            self.peak_mib,
            of_peer(|peer| format!("{:.0}", peer.peer_peak_mib)),
            of_peer(|peer| format!("{:.3}", peer.peak_fraction)),
            known(target)
        )
    }
}

/// This machine.
pub(crate) fn machine() -> Machine {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':'])).to_owned();
    Machine { cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get), cpu }
}
