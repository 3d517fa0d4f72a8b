//! `cargo xtask bench allreduce`: ours, the machine's limit and the peers in turn, round by round.

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use super::allreduce_cases::{CASES, Case, Mpi};
use super::report::{self, Report};
use super::sides::{Side, rows_of};
use crate::out;

/// The crate, and its program.
pub(crate) const PROGRAM: &str = "lockstep-allreduce-bench";

/// Settings of `cargo xtask bench allreduce`.
#[derive(Args)]
pub(crate) struct Allreduce {
    /// End with one JSON object on a line of its own.
    #[arg(long)]
    json: bool,
    /// A Python that has PyTorch, and mpi4py with Open MPI if it is to be compared, too: measures the
    /// same there, in turn with ours.
    #[arg(long, value_name = "PYTHON")]
    peer: Option<Utf8PathBuf>,
    /// Only these cases. May be repeated [default: all].
    #[arg(long = "case", value_name = "NAME", value_parser = case_names())]
    cases: Vec<String>,
    /// How often each side has its turn.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

fn case_names() -> [&'static str; CASES.len()] {
    CASES.each_ref().map(|case| case.name)
}

impl Allreduce {
    /// Measures and says.
    pub(crate) fn run(&self, root: &Utf8Path, programs: &Utf8Path) -> anyhow::Result<()> {
        let (ours, script) = (programs.join(PROGRAM), root.join("bench/peer/allreduce.py"));
        let has_mpi = self.peer.as_deref().is_some_and(has_mpi);
        let mut rows = Vec::new();
        for case in CASES.iter().filter(|case| self.is_asked_for(case)) {
            out::note(case.name);
            let side = |command, calls, ratio| Side::start(command, case.name, calls, ratio);
            let mut sides = vec![side(Command::new(&ours), case.calls, None)?];
            if case.has_limit {
                let mut limit = Command::new(&ours);
                limit.arg("--limit");
                sides.push(side(limit, case.calls, None)?);
            }
            let own_sides = sides.len();
            let peer = |library: &str| {
                let mut command = Command::new(self.peer.as_deref().unwrap_or("python3".into()));
                command.arg(&script).args(["--library", library]);
                command
            };
            if self.peer.is_some() {
                sides.push(side(peer("gloo"), case.peer_calls, case.gloo_ratio)?);
            }
            match case.mpi {
                Mpi::Information if has_mpi => {
                    sides.push(side(peer("mpi"), case.peer_calls, None)?)
                }
                Mpi::Ratio(ratio) if has_mpi => {
                    sides.push(side(peer("mpi"), case.peer_calls, Some(ratio))?);
                }
                Mpi::Absent | Mpi::Information | Mpi::Ratio(_) => {}
            }
            for _ in 0..self.rounds {
                sides.iter_mut().try_for_each(Side::turn)?;
            }
            let (own, peers) = sides.split_at(own_sides);
            rows.extend(rows_of((case.name, case.unit, case.target), own, peers)?);
            sides.into_iter().try_for_each(Side::end)?;
        }
        Report { bench: "allreduce", machine: report::machine(), rows }.say(self.json)
    }

    fn is_asked_for(&self, case: &Case) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| name == case.name)
    }
}

/// Whether that Python can speak to Open MPI.
fn has_mpi(python: &Utf8Path) -> bool {
    let mut import = Command::new(python);
    import.args(["-c", "from mpi4py import MPI"]).stderr(Stdio::null()).stdin(Stdio::null());
    let has = import.status().is_ok_and(|status| status.success());
    if !has {
        out::note(&format!("{python} has no mpi4py: Open MPI is not measured"));
    }
    has
}
