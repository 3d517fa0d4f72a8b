//! `cargo xtask bench ddp`: one training step of two ranks, ours and the peer's in turn, and what the other
//! rank costs.

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use super::report::{self, Report};
use super::sides::{Row, Side, Target, Unit, rows_of};
use crate::out;

/// The crate, and its program.
pub(crate) const PROGRAM: &str = "lockstep-step-bench";

/// Settings of `cargo xtask bench ddp`.
#[derive(Args)]
pub(crate) struct Ddp {
    /// End with one JSON object on a line of its own.
    #[arg(long)]
    json: bool,
    /// A Python that has PyTorch: trains the same models there, in turn with ours.
    #[arg(long, value_name = "PYTHON")]
    peer: Option<Utf8PathBuf>,
    /// Only these cases. May be repeated [default: all].
    #[arg(long = "case", value_name = "NAME", value_parser = case_names())]
    cases: Vec<String>,
    /// How often each side has its turn.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// One model: steps of one turn, and the bar.
struct Case {
    name: &'static str,
    steps: u32,
    ratio: f64,
}

const CASES: [Case; 5] = [
    Case { name: "mlp-128", steps: 16, ratio: 1.8 },
    Case { name: "mlp-8", steps: 60, ratio: 4.0 },
    Case { name: "cnn-128", steps: 2, ratio: 1.5 },
    Case { name: "resnet18-32", steps: 1, ratio: 1.25 },
    Case { name: "gpt-8", steps: 2, ratio: 1.15 },
];

/// The case that shows what the other rank costs.
const COSTS: &str = "gpt-8";
/// One rank's step by one of two ranks'.
const EFFICIENCY: f64 = 0.93;
/// A step without reducing by one with it: three parts in a hundred may be seen.
const HIDDEN: f64 = 0.97;

fn case_names() -> [&'static str; CASES.len()] {
    CASES.each_ref().map(|case| case.name)
}

impl Ddp {
    /// Measures and says.
    pub(crate) fn run(&self, root: &Utf8Path, programs: &Utf8Path) -> anyhow::Result<()> {
        let script = root.join("bench/peer/ddp.py");
        let mut rows = Vec::new();
        let is_asked_for =
            |case: &&Case| self.cases.is_empty() || self.cases.iter().any(|name| name == case.name);
        for case in CASES.iter().filter(is_asked_for) {
            out::note(case.name);
            let ours = |arguments: &[&str]| {
                let mut command = Command::new(programs.join(PROGRAM));
                command.args(arguments);
                Side::start(command, case.name, case.steps, None)
            };
            let mut sides = vec![ours(&["--ranks", "2"])?];
            if case.name == COSTS {
                sides.push(ours(&["--ranks", "1"])?);
                sides.push(ours(&["--ranks", "2", "--apart"])?);
            }
            let own = sides.len();
            if let Some(python) = &self.peer {
                let mut command = Command::new(python);
                command.arg(&script);
                sides.push(Side::start(command, case.name, case.steps, Some(case.ratio))?);
            }
            for _ in 0..self.rounds {
                sides.iter_mut().try_for_each(Side::turn)?;
            }
            rows.extend(case.rows(&sides, own)?);
            sides.into_iter().try_for_each(Side::end)?;
        }
        Report { bench: "ddp", machine: report::machine(), rows }.say(self.json)
    }
}

impl Case {
    /// `sides`: ours; of one case one rank alone and two apart; and the peer, from `own` on.
    fn rows(&self, sides: &[Side], own: usize) -> anyhow::Result<Vec<Row>> {
        let (ours, peers) = (&sides[..1], &sides[own..]);
        let name = format!("{}, 2 ranks", self.name);
        let mut rows = rows_of((&name, Unit::Ms, Target::default()), ours, peers)?;
        if let [together, alone, apart, ..] = &sides[..own] {
            for (what, limit, least) in [
                ("scaling 1 to 2 ranks", alone, EFFICIENCY),
                ("hidden communication", apart, HIDDEN),
            ] {
                let name = format!("{}, {what}", self.name);
                let target = Target { fraction: Some(least), ..Target::default() };
                rows.extend(rows_of((&name, Unit::Ms, target), &[together, limit], &[])?);
            }
        }
        Ok(rows)
    }
}
