//! A measuring program and the lines it is driven with: the protocol of bench/README.md.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// One side of one case: a process that trains this model and nothing else.
pub(crate) struct Program {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    what: String,
    case: String,
    threads: u32,
    /// What is measured, by its own account.
    pub(crate) name: String,
}

/// The first line.
#[derive(Deserialize)]
struct Hello {
    case: String,
    threads: u32,
    name: String,
}

#[derive(Serialize)]
struct Measure<'a> {
    case: &'a str,
    threads: u32,
    rounds: u32,
}

/// What one command gave.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) case: String,
    /// Time of each step, milliseconds.
    pub(crate) ms: Vec<f64>,
    /// Greatest resident size of the process so far.
    pub(crate) peak_rss_mib: f64,
}

impl Program {
    /// Starts it and waits until it is warm.
    pub(crate) fn start(mut command: Command, case: &str, threads: u32) -> anyhow::Result<Self> {
        let what = format!("{} on {case}", command.get_program().to_string_lossy());
        command.args(["--case", case, "--threads", &threads.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("starting {what}"))?;
        let commands = child.stdin.take();
        let answers = child.stdout.take().context("its output is a pipe")?;
        let mut program = Self {
            child,
            commands,
            answers: BufReader::new(answers),
            what,
            case: case.to_owned(),
            threads,
            name: String::new(),
        };
        let hello: Hello = program.answer()?;
        if (hello.case.as_str(), hello.threads) != (case, threads) {
            bail!("{} set up {} on {} threads", program.what, hello.case, hello.threads);
        }
        program.name = hello.name;
        Ok(program)
    }

    /// Times so many steps.
    pub(crate) fn measure(&mut self, rounds: u32) -> anyhow::Result<Measured> {
        let (case, threads) = (self.case.as_str(), self.threads);
        let mut line = serde_json::to_string(&Measure { case, threads, rounds })?;
        line.push('\n');
        let commands = self.commands.as_mut().context("its input is open until it is ended")?;
        let sent = commands.write_all(line.as_bytes()).and_then(|()| commands.flush());
        sent.with_context(|| format!("asking {}", self.what))?;
        let measured: Measured = self.answer()?;
        if measured.case != self.case || measured.ms.len() != rounds as usize {
            bail!("{} was asked for {rounds} steps and answered {measured:?}", self.what);
        }
        Ok(measured)
    }

    /// Ends it.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.commands = None;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} ended with {status}", self.what);
        }
        Ok(())
    }

    fn answer<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.answers.read_line(&mut line).with_context(|| format!("listening to {}", self.what))?;
        if line.is_empty() {
            let status = self.child.wait()?;
            bail!("{} ended with {status}; what it said is above", self.what);
        }
        serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.what))
    }
}

impl Drop for Program {
    /// A program whose input has ended ends by itself; one that failed is not worth waiting for.
    fn drop(&mut self) {
        self.commands = None;
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that plays a measuring program: `answer` is what it does for each command.
    fn program(answer: &str) -> anyhow::Result<Program> {
        let script = format!(
            r#"echo '{{"case": "mlp-8", "threads": 2, "name": "shell"}}'; while read -r line; do {answer}; done"#
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]);
        Program::start(command, "mlp-8", 2)
    }

    #[test]
    fn a_program_is_asked_for_steps_and_ended() {
        let answer = r#"[ "$line" = '{"case":"mlp-8","threads":2,"rounds":2}' ] || exit 3
            echo '{"case": "mlp-8", "ms": [1.5, 2], "peak_rss_mib": 7}'"#;
        let mut program = program(answer).unwrap();
        assert_eq!(program.name, "shell");
        let measured = program.measure(2).unwrap();
        assert_eq!((measured.ms, measured.peak_rss_mib), (vec![1.5, 2.0], 7.0));
        program.end().unwrap();
    }

    #[test]
    fn what_a_program_does_wrong_is_said() {
        let error = |answer| program(answer).unwrap().measure(2).unwrap_err().to_string();
        let short = r#"echo '{"case": "mlp-8", "ms": [1.5], "peak_rss_mib": 7}'"#;
        assert!(error(short).contains("asked for 2 steps"));
        assert!(error("exit 3").contains("ended with exit status: 3"));
        assert!(error("echo warm").contains(r#"said "warm\n""#));
        let mut other = Command::new("sh");
        other.args(["-c", r#"echo '{"case": "cnn-128", "threads": 2, "name": "shell"}'"#]);
        let error = Program::start(other, "mlp-8", 2).err().unwrap().to_string();
        assert!(error.contains("set up cnn-128 on 2 threads"), "{error}");
    }
}
