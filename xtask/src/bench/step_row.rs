//! A row of the step benchmark.

use serde::Serialize;

use super::cases::Target;
use super::report::{TableRow, verdict};

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

impl TableRow for Row {
    fn head() -> String {
        format!(
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
        )
    }

    fn line(&self) -> String {
        let known = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        let of_peer = |get: fn(&Peer) -> String| known(self.peer.as_ref().map(get));
        let target = self.target.map(|Target { ratio, peak_fraction }| {
            format!("ratio >= {ratio}, part <= {peak_fraction:.2}{}", verdict(self.holds))
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
