//! The lines between a measuring program and whoever drives it.

use std::io::{BufRead as _, Write as _};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize)]
struct Hello<'a> {
    case: &'a str,
    threads: u32,
    name: &'a str,
}

#[derive(Debug, Deserialize)]
struct Measure {
    case: String,
    threads: u32,
    rounds: u32,
}

#[derive(Debug, Serialize)]
struct Measured<'a> {
    case: &'a str,
    ms: Vec<f64>,
    peak_rss_mib: f64,
}

/// Says that everything is warm, then answers commands until the input ends. `measure` answers with
/// the times of so many rounds and the peak of memory.
pub fn answer_commands(
    case: &str,
    threads: u32,
    name: &str,
    mut measure: impl FnMut(u32) -> anyhow::Result<(Vec<f64>, f64)>,
) -> anyhow::Result<()> {
    say(&Hello { case, threads, name })?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("reading commands")?;
        let command: Measure =
            serde_json::from_str(&line).with_context(|| format!("the command {line:?}"))?;
        if (command.case.as_str(), command.threads) != (case, threads) {
            bail!("this process measures {case} on {threads} threads, not {line}");
        }
        let (ms, peak_rss_mib) = measure(command.rounds)?;
        ensure!(ms.len() == command.rounds as usize, "{} times for {line}", ms.len());
        say(&Measured { case, ms, peak_rss_mib })?;
    }
    Ok(())
}

fn say(answer: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush().context("answering")
}

/// The greatest resident size of this process so far, as the kernel counts it.
pub fn peak_rss_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading own status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib =
        line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    Ok(kib.context("own status has a peak of memory")? / 1024.0)
}
