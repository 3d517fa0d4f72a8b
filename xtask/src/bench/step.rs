//! `cargo xtask bench step`: both sides of each case in turn, round by round.

use std::process::Command;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use super::cases::{CASES, CEILING, CEILING_STEPS, CEILING_WORK, Case};
use super::program::{Measured, Program};
use super::report::{self, Report};
use super::step_row::{Peer, Row};
use crate::out;

/// Settings of `cargo xtask bench step`.
#[derive(Args)]
pub(crate) struct Step {
    /// End with one JSON object on a line of its own.
    #[arg(long)]
    json: bool,
    /// A Python that has PyTorch: measures the same models there, in turn with ours.
    #[arg(long, value_name = "PYTHON")]
    peer: Option<Utf8PathBuf>,
    /// Only these cases. May be repeated [default: all].
    #[arg(long = "case", value_name = "NAME", value_parser = case_names())]
    cases: Vec<String>,
    /// Compute threads. May be repeated.
    #[arg(long, value_name = "N", default_values_t = [1, 2], value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// How often each side has its turn.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

fn case_names() -> [&'static str; CASES.len()] {
    CASES.each_ref().map(|case| case.name)
}

impl Step {
    /// Measures and says.
    pub(crate) fn run(&self, root: &Utf8Path, programs: &Utf8Path) -> anyhow::Result<()> {
        let sides = Sides {
            ours: programs.join("lockstep-step-bench"),
            peer: self.peer.as_deref(),
            script: root.join("bench/peer/step.py"),
        };
        let mut rows = Vec::new();
        for &threads in &self.threads {
            let both = sides.measure(CEILING, threads, CEILING_STEPS, self.rounds)?;
            let best = both.best().context("the limit was measured")?;
            let limit = CEILING_WORK as f64 / best;
            let gflops = limit * 1e-6;
            out::note(&format!("limit on {threads} threads: {gflops:.1} GF/s ({CEILING})"));
            for case in CASES.iter().filter(|case| self.is_asked_for(case)) {
                let both = sides.measure(case.name, threads, case.steps, self.rounds)?;
                rows.push(row(case, threads, &both, limit)?);
            }
        }
        Report { bench: "step", machine: report::machine(), rows }.say(self.json)
    }

    fn is_asked_for(&self, case: &Case) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| name == case.name)
    }
}

/// Which programs are measured.
struct Sides<'a> {
    ours: Utf8PathBuf,
    peer: Option<&'a Utf8Path>,
    script: Utf8PathBuf,
}

/// What one side needed, all rounds together.
#[derive(Debug, Default)]
struct Times {
    name: String,
    /// In ascending order.
    ms: Vec<f64>,
    peak_mib: f64,
}

#[derive(Debug)]
struct Both {
    ours: Times,
    peer: Option<Times>,
}

impl Sides<'_> {
    /// Both sides of one case, warm at the same time, computing in turn.
    fn measure(&self, case: &str, threads: u32, steps: u32, rounds: u32) -> anyhow::Result<Both> {
        out::note(&format!("{case} on {threads} threads"));
        let start = |command| Program::start(command, case, threads);
        let mut ours = start(Command::new(&self.ours))?;
        let peer = self.peer.map(|python| {
            let mut command = Command::new(python);
            command.arg(&self.script);
            command
        });
        let mut peer = peer.map(start).transpose()?;
        let mut times = Both { ours: Times::of(&ours), peer: peer.as_ref().map(Times::of) };
        for _ in 0..rounds {
            times.ours.add(ours.measure(steps)?);
            if let (Some(program), Some(times)) = (&mut peer, &mut times.peer) {
                times.add(program.measure(steps)?);
            }
        }
        ours.end()?;
        peer.map_or(Ok(()), Program::end)?;
        Ok(times)
    }
}

impl Times {
    fn of(program: &Program) -> Self {
        Self { name: program.name.clone(), ..Self::default() }
    }

    fn add(&mut self, measured: Measured) {
        self.ms.extend(measured.ms);
        self.ms.sort_by(f64::total_cmp);
        self.peak_mib = measured.peak_rss_mib.max(self.peak_mib);
    }

    fn median(&self) -> Option<f64> {
        report::median(&self.ms)
    }
}

impl Both {
    /// The least time of either side.
    fn best(&self) -> Option<f64> {
        let firsts = [Some(&self.ours), self.peer.as_ref()].into_iter().flatten();
        firsts.filter_map(|times| times.ms.first().copied()).min_by(f64::total_cmp)
    }
}

/// `limit`: floating-point operations a millisecond.
fn row(case: &Case, threads: u32, both: &Both, limit: f64) -> anyhow::Result<Row> {
    let Both { ours, peer } = both;
    let median = ours.median().context("at least one step was measured")?;
    let peer = peer.as_ref().map(|times| peer_of(times, median, ours.peak_mib)).transpose()?;
    let limit = case.work as f64 / limit;
    // The bars are for one thread.
    let target = (threads == 1).then_some(case.target);
    let holds = target.zip(peer.as_ref()).map(|(target, peer)| {
        target.ratio <= peer.ratio && peer.peak_fraction <= target.peak_fraction
    });
    Ok(Row {
        case: format!(
            "{}, {threads} {}",
            case.name,
            if threads == 1 { "thread" } else { "threads" }
        ),
        unit: "ms",
        ours: median,
        min: ours.ms.first().copied().unwrap_or(median),
        runs: ours.ms.len(),
        gflops: case.work as f64 / median * 1e-6,
        limit,
        fraction: limit / median,
        peak_mib: ours.peak_mib,
        peer,
        target,
        holds,
    })
}

fn peer_of(times: &Times, ours: f64, our_peak_mib: f64) -> anyhow::Result<Peer> {
    let median = times.median().context("the peer measured at least one step")?;
    Ok(Peer {
        peer: median,
        peer_min: times.ms.first().copied().unwrap_or(median),
        peer_name: times.name.clone(),
        ratio: median / ours,
        peer_peak_mib: times.peak_mib,
        peak_fraction: our_peak_mib / times.peak_mib,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ms: &[f64], peak_mib: f64) -> Times {
        let mut times = Times { name: "it".to_owned(), ..Times::default() };
        let (case, ms) = ("mlp-128".to_owned(), ms.to_vec());
        times.add(Measured { case, ms, peak_rss_mib: peak_mib });
        times
    }

    #[test]
    fn a_row_compares_medians_peaks_and_the_limit() {
        let case = &CASES[0];
        let ours = times(&[4.0, 2.0, 3.0], 50.0);
        let peer = Some(times(&[6.0, 5.0], 550.0));
        let limit = case.work as f64 / 1.5;
        let both = Both { ours, peer };
        assert_eq!(both.best(), Some(2.0));
        let found = row(case, 1, &both, limit).unwrap();
        let peer = found.peer.as_ref().unwrap();
        assert_eq!((found.ours, found.min, peer.peer), (3.0, 2.0, 5.5));
        assert_eq!((found.fraction, found.limit), (0.5, 1.5));
        assert_eq!((peer.ratio, peer.peak_fraction), (5.5 / 3.0, 50.0 / 550.0));
        assert_eq!(found.holds, Some(true));
        assert_eq!(found.case, "mlp-128, 1 thread");
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!((&json["peer_name"], &json["ratio"]), (&"it".into(), &(5.5 / 3.0).into()));
    }

    #[test]
    fn a_bar_is_missed_by_time_or_by_memory_and_is_for_one_thread() {
        let holds = |ours, peak, threads| {
            let (ours, peer) = (times(&[ours], peak), Some(times(&[11.5], 500.0)));
            row(&CASES[0], threads, &Both { ours, peer }, 1.0).unwrap().holds
        };
        assert_eq!(holds(10.0, 50.0, 1), Some(true));
        assert_eq!(holds(10.1, 50.0, 1), Some(false));
        assert_eq!(holds(10.0, 51.0, 1), Some(false));
        assert_eq!(holds(10.0, 50.0, 2), None);
        let alone = Both { ours: times(&[10.0], 50.0), peer: None };
        assert_eq!(row(&CASES[0], 1, &alone, 1.0).unwrap().holds, None);
    }
}
