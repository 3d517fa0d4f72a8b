//! Sides that have their turn round by round, and the rows that come of it.

use std::borrow::Borrow;
use std::process::Command;

use anyhow::Context as _;
use serde::Serialize;

use super::program::Program;
use super::report::{TableRow, median, verdict};

/// What times are said in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    Us,
    Ms,
}

impl Unit {
    /// Of a time in milliseconds.
    fn of(self, ms: f64) -> f64 {
        match self {
            Self::Us => ms * 1e3,
            Self::Ms => ms,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Us => "us",
            Self::Ms => "ms",
        }
    }
}

/// What a row should reach; what is not there is for information.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Target {
    /// Our time, at most, in the row's unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ours: Option<f64>,
    /// The limit by our time, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fraction: Option<f64>,
    /// The peer's time by ours, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
}

/// One case against one peer, or without.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    case: String,
    unit: Unit,
    /// Median of the slower rank.
    ours: f64,
    min: f64,
    runs: usize,
    /// Median of what the machine needs for the same bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<f64>,
    /// `limit` by `ours`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fraction: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    peer: Option<Peer>,
    target: Target,
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Peer {
    /// Median of the slower rank.
    peer: f64,
    peer_min: f64,
    peer_name: String,
    /// `peer` by `ours`.
    ratio: f64,
}

/// One side of a case: a program and what it has answered.
pub(crate) struct Side {
    program: Program,
    calls: u32,
    /// In ascending order.
    ms: Vec<f64>,
    /// Its target, for a peer.
    ratio: Option<f64>,
}

impl Side {
    /// Starts a program on a case, one thread a rank. `calls`: of one turn; `ratio`: the target, for a
    /// peer.
    pub(crate) fn start(
        command: Command,
        case: &str,
        calls: u32,
        ratio: Option<f64>,
    ) -> anyhow::Result<Self> {
        let program = Program::start(command, case, 1)?;
        Ok(Self { program, calls, ms: Vec::new(), ratio })
    }

    /// One turn.
    pub(crate) fn turn(&mut self) -> anyhow::Result<()> {
        self.ms.extend(self.program.measure(self.calls)?.ms);
        self.ms.sort_by(f64::total_cmp);
        Ok(())
    }

    /// Ends the program.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        self.program.end()
    }

    fn median(&self) -> anyhow::Result<f64> {
        median(&self.ms).context("at least one call was measured")
    }

    fn min(&self) -> f64 {
        self.ms.first().copied().unwrap_or(f64::NAN)
    }
}

/// `own`: ours, then the limit if there is one. A row for each peer; what does not concern a peer is
/// asked of the first row alone.
pub(crate) fn rows_of(
    (case, unit, target): (&str, Unit, Target),
    own: &[impl Borrow<Side>],
    peers: &[Side],
) -> anyhow::Result<Vec<Row>> {
    let ours = own.first().context("ours was measured")?.borrow();
    let limit = own.get(1).map(|limit| limit.borrow().median()).transpose()?;
    let peers: Vec<Option<&Side>> = match peers {
        [] => vec![None],
        _ => peers.iter().map(Some).collect(),
    };
    let row = |(index, side): (usize, Option<&Side>)| {
        let median = ours.median()?;
        let peer = side.map(|side| peer_of(unit, side, median)).transpose()?;
        let ratio = side.and_then(|side| side.ratio);
        let target = match index {
            0 => Target { ratio, ..target },
            _ => Target { ratio, ..Target::default() },
        };
        let row = Row {
            case: case.to_owned(),
            unit,
            ours: unit.of(median),
            min: unit.of(ours.min()),
            runs: ours.ms.len(),
            limit: limit.map(|limit| unit.of(limit)),
            fraction: limit.map(|limit| limit / median),
            peer,
            target,
            holds: None,
        };
        Ok(Row { holds: row.holds(), ..row })
    };
    peers.into_iter().enumerate().map(row).collect()
}

fn peer_of(unit: Unit, side: &Side, ours: f64) -> anyhow::Result<Peer> {
    let median = side.median()?;
    Ok(Peer {
        peer: unit.of(median),
        peer_min: unit.of(side.min()),
        peer_name: side.program.name.clone(),
        ratio: median / ours,
    })
}

impl Row {
    /// Whether every target holds that there is a figure for.
    fn holds(&self) -> Option<bool> {
        let Target { ours, fraction, ratio } = self.target;
        let found = [
            ours.map(|most| self.ours <= most),
            fraction.zip(self.fraction).map(|(least, found)| least <= found),
            ratio.zip(self.peer.as_ref()).map(|(least, peer)| least <= peer.ratio),
        ];
        found.into_iter().flatten().reduce(|all, one| all && one)
    }
}

impl TableRow for Row {
    fn head() -> String {
        format!(
            "{:28} {:>4} {:>9} {:>9} {:>8} {:>10} {:>7}  {:32} target",
            "case", "unit", "ours", "limit", "of limit", "peer", "ratio", "peer's name"
        )
    }

    fn line(&self) -> String {
        let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let of_peer = |get: fn(&Peer) -> String| known(self.peer.as_ref().map(get));
        let Target { ours, fraction, ratio } = self.target;
        let targets = [
            ours.map(|most| format!("ours <= {most}")),
            fraction.map(|least| format!("of limit >= {:.0}%", least * 100.0)),
            ratio.map(|least| format!("ratio >= {least}")),
        ];
        let targets: Vec<String> = targets.into_iter().flatten().collect();
        format!(
            "{:28} {:>4} {:>9.2} {:>9} {:>8} {:>10} {:>7}  {:32} {}{}",
            self.case,
            self.unit.name(),
            self.ours,
            known(self.limit.map(|limit| format!("{limit:.2}"))),
            known(self.fraction.map(|fraction| format!("{:.0}%", fraction * 100.0))),
            of_peer(|peer| format!("{:.2}", peer.peer)),
            of_peer(|peer| format!("{:.2}", peer.ratio)),
            of_peer(|peer| peer.peer_name.clone()),
            targets.join(", "),
            verdict(self.holds)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str, ms: &[f64], ratio: Option<f64>) -> Side {
        let script =
            format!(r#"echo '{{"case": "it", "threads": 1, "name": "{name}"}}'; cat > /dev/null"#);
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]);
        let mut side = Side::start(command, "it", 1, ratio).unwrap();
        side.ms = ms.to_vec();
        side
    }

    #[test]
    fn every_peer_has_a_row_and_the_limit_is_asked_of_the_first() {
        let case = ("it", Unit::Us, Target { fraction: Some(0.8), ..Target::default() });
        let own = [side("ours", &[0.001, 0.002, 0.003], None), side("it", &[0.001], None)];
        let peers = [side("one", &[0.008], Some(4.0)), side("other", &[0.004], Some(3.0))];
        let rows = rows_of(case, &own, &peers).unwrap();
        assert_eq!((rows[0].ours, rows[0].min, rows[0].fraction), (2.0, 1.0, Some(0.5)));
        let ratio = |row: &Row| row.peer.as_ref().map(|peer| peer.ratio);
        assert_eq!(rows.iter().map(ratio).collect::<Vec<_>>(), [Some(4.0), Some(2.0)]);
        assert_eq!(
            (rows[0].holds, rows[1].holds),
            (Some(false), Some(false)),
            "by limit, by ratio"
        );
        let json = serde_json::to_value(&rows[1]).unwrap();
        assert_eq!((&json["peer_name"], &json["unit"]), (&"other".into(), &"us".into()));
        assert_eq!(json["target"], serde_json::json!({"ratio": 3.0}));

        let alone = rows_of(case, &own, &[]).unwrap();
        assert_eq!((alone.len(), alone[0].holds), (1, Some(false)));
        let without = ("it", Unit::Us, Target::default());
        assert_eq!(rows_of(without, &own, &[]).unwrap()[0].holds, None);
    }
}
