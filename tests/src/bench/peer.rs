//! The peer of `recover`: torchrun, started by a script that does one run of a case and says what came of it.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use camino::Utf8PathBuf;
use serde::Deserialize;
use tokio::process::Command;

use crate::report::{Figure, Row, median, say};

/// Runs of one case: one takes 10 s to two minutes.
const MOST_RUNS: usize = 3;

/// Longest wait for a run: more than the script's own deadlines together.
const DEADLINE: Duration = Duration::from_secs(300);

/// What a run is started with.
#[derive(Debug)]
pub(crate) struct Peer {
    /// A Python that has PyTorch.
    pub(crate) python: Utf8PathBuf,
    pub(crate) script: Utf8PathBuf,
}

/// One run; bench/README.md says what the script means by it.
#[derive(Debug, Deserialize)]
pub(crate) struct Run {
    case: String,
    name: String,
    pub(crate) noticed_s: Option<f64>,
    pub(crate) stepping_s: Option<f64>,
    steps_lost: Option<u64>,
}

/// The peer's turns in one case; none without a peer.
#[derive(Debug)]
pub(crate) struct Turns<'peer> {
    peer: Option<&'peer Peer>,
    case: &'static str,
    runs: Vec<Run>,
}

impl Peer {
    async fn run(&self, case: &str) -> anyhow::Result<Run> {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).args(["--case", case]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("starting {}", self.python))?;
        let output = tokio::time::timeout(DEADLINE, child.wait_with_output())
            .await
            .with_context(|| format!("the peer on {case}: not within {DEADLINE:?}"))??;
        let status = output.status;
        ensure!(status.success(), "the peer on {case} ended with {status}; what it said is above");
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().last().context("the peer ends with a line")?;
        let run: Run = serde_json::from_str(line).with_context(|| format!("it said {line:?}"))?;
        ensure!(run.case == case, "the peer was asked for {case} and answered {run:?}");
        Ok(run)
    }
}

impl<'peer> Turns<'peer> {
    pub(crate) fn new(peer: Option<&'peer Peer>, case: &'static str) -> Self {
        Self { peer, case, runs: Vec::new() }
    }

    /// One run, unless there were enough.
    pub(crate) async fn turn(&mut self) -> anyhow::Result<()> {
        if let Some(peer) = self.peer.filter(|_| self.runs.len() < MOST_RUNS) {
            let run = peer.run(self.case).await?;
            say(&run.line());
            self.runs.push(run);
        }
        Ok(())
    }

    /// Our row with the peer's figure in it: `of` each run, where it has one.
    pub(crate) fn beside(&self, row: Row, of: fn(&Run) -> Option<f64>) -> Row {
        let figure = self.runs.first().map(|first| {
            let mut times: Vec<f64> = self.runs.iter().filter_map(of).collect();
            times.sort_by(f64::total_cmp);
            let peer = median(&times);
            Figure {
                peer,
                peer_runs: self.runs.len(),
                peer_failed: self.runs.len() - times.len(),
                peer_name: first.name.clone(),
                ratio: peer.map(|peer| peer / row.ours),
            }
        });
        Row { peer: figure, ..row }
    }
}

impl Run {
    fn line(&self) -> String {
        let after = |it: Option<f64>| {
            it.map_or_else(|| "never".to_owned(), |it| format!("after {it:.2} s"))
        };
        let lost =
            self.steps_lost.map_or_else(String::new, |it| format!(", {it} steps done again"));
        let (noticed, stepping) = (after(self.noticed_s), after(self.stepping_s));
        format!("the peer, {}: noticed {noticed}, next step {stepping}{lost}", self.case)
    }
}

#[cfg(test)]
mod tests {
    use crate::report::Target;

    use super::*;

    /// A shell that plays the peer: `$2` is the case, and the script's folder counts its runs.
    const SCRIPT: &str = r#"
        echo run >> "$0.runs"
        stepping=$(wc -l < "$0.runs")
        [ "$stepping" = 2 ] && stepping=null
        echo warm
        echo "{\"case\": \"$2\", \"name\": \"shell\", \"noticed_s\": 0.5, \"stepping_s\": $stepping, \"steps_lost\": null}"
    "#;

    fn row() -> Row {
        Row {
            case: "it",
            unit: "s",
            ours: 0.5,
            runs: 1,
            min: 0.5,
            max: 0.5,
            target: Target::default(),
            holds: None,
            peer: None,
        }
    }

    #[tokio::test]
    async fn a_peer_has_so_many_turns_and_those_that_failed_are_counted_apart() {
        let folder = tempfile::tempdir().unwrap();
        let script = Utf8PathBuf::try_from(folder.path().join("peer.sh")).unwrap();
        std::fs::write(&script, SCRIPT).unwrap();
        let peer = Peer { python: "sh".into(), script };
        let mut turns = Turns::new(Some(&peer), "frozen rank");
        for _ in 0..=MOST_RUNS {
            turns.turn().await.unwrap();
        }
        let json = serde_json::to_value(turns.beside(row(), |run| run.stepping_s)).unwrap();
        assert_eq!(json["peer"], 2.0, "of 1 and 3");
        assert_eq!(json["ratio"], 4.0);
        assert_eq!(json["peer_runs"], 3);
        assert_eq!(json["peer_failed"], 1);
        assert_eq!(json["peer_name"], "shell");
        let noticed = turns.beside(row(), |run| run.noticed_s).peer.unwrap();
        assert_eq!((noticed.peer, noticed.peer_failed), (Some(0.5), 0));
    }

    #[tokio::test]
    async fn without_a_peer_a_row_has_no_word_of_one() {
        let mut turns = Turns::new(None, "frozen rank");
        turns.turn().await.unwrap();
        let json = serde_json::to_value(turns.beside(row(), |run| run.stepping_s)).unwrap();
        assert!(json.get("peer").is_none() && json.get("peer_failed").is_none(), "{json}");
    }

    #[tokio::test]
    async fn a_peer_that_ends_badly_is_an_error() {
        let peer = Peer { python: "false".into(), script: "peer.py".into() };
        let error = Turns::new(Some(&peer), "frozen rank").turn().await.unwrap_err().to_string();
        assert!(error.contains("ended with exit status: 1"), "{error}");
    }
}
