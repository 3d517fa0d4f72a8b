//! Two network namespaces joined by a cable, as two machines are.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::tell;

/// A network namespace, kept by a process that sleeps in it.
#[derive(Debug)]
struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// `None`, and said why, where the system does not allow it.
    fn new() -> anyhow::Result<Option<Self>> {
        let allowed = Command::new("unshare").args(["--net", "true"]).output()?;
        if !allowed.status.success() {
            let words = String::from_utf8_lossy(&allowed.stderr);
            tell(&format!("skipped: no network namespaces here: {}", words.trim()));
            return Ok(None);
        }
        let mut keep = Command::new("unshare");
        // It says so once it is inside, and ends with its standard input.
        keep.args(["--net", "sh", "-c", "echo in; exec cat >/dev/null"]);
        let mut keeper = keep.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut word = [0; 3];
        let stdout = keeper.stdout.as_mut().context("it is piped")?;
        std::io::Read::read_exact(stdout, &mut word)?;
        Ok(Some(Self { keeper }))
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.keeper.id())
    }

    /// `ip …` in it.
    fn ip(&self, words: &str) -> anyhow::Result<()> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg("ip").args(words.split(' '));
        let output = command.output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ip {words}: {error}");
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = self.keeper.kill().and_then(|()| self.keeper.wait()) {
            tell(&format!("the keeper of a namespace: {error}"));
        }
    }
}

/// Addresses at the ends of the line that only ranks use.
const NEAR_OF_LINE: &str = "10.78.0.1";
const FAR_OF_LINE: &str = "10.78.0.2";

/// Two namespaces on one network.
#[derive(Debug)]
pub struct Cable {
    near: Namespace,
    far: Namespace,
}

impl Cable {
    /// Address at the near end.
    pub const NEAR: &str = "10.77.0.1";
    /// Address at the far end.
    pub const FAR: &str = "10.77.0.2";

    /// Lays one. `None`, and said why, where the system does not allow it.
    ///
    /// # Errors
    /// Of the system.
    pub fn lay() -> anyhow::Result<Option<Self>> {
        let (Some(near), Some(far)) = (Namespace::new()?, Namespace::new()?) else {
            return Ok(None);
        };
        let far_pid = far.keeper.id();
        near.ip(&format!("link add cable type veth peer name cable netns {far_pid}"))?;
        for (end, address) in [(&near, Self::NEAR), (&far, Self::FAR)] {
            end.ip("link set lo up")?;
            end.ip(&format!("addr add {address}/24 dev cable"))?;
            end.ip("link set cable up")?;
        }
        Ok(Some(Self { near, far }))
    }

    /// Lays a second one beside it, for ranks alone: what to put before the commands of the agents at either end, so that
    /// they are reached over it.
    ///
    /// # Errors
    /// Of the system.
    pub fn lay_line(&self) -> anyhow::Result<[Vec<String>; 2]> {
        let far_pid = self.far.keeper.id();
        self.near.ip(&format!("link add line type veth peer name line netns {far_pid}"))?;
        for (end, address) in [(&self.near, NEAR_OF_LINE), (&self.far, FAR_OF_LINE)] {
            end.ip(&format!("addr add {address}/24 dev line"))?;
            end.ip("link set line up")?;
        }
        let told = |mut before: Vec<String>, address: &str| {
            before.push("env".to_owned());
            before.push(format!("LOCKSTEP_AGENT_ADVERTISE_ADDRESS={address}"));
            before
        };
        Ok([told(Vec::new(), NEAR_OF_LINE), told(self.at_far_end(), FAR_OF_LINE)])
    }

    /// Pulls the plug of the line, or puts it in again: `down` or `up`.
    ///
    /// # Errors
    /// Of the system.
    pub fn set_line(&self, state: &str) -> anyhow::Result<()> {
        self.far.ip(&format!("link set line {state}"))
    }

    /// Moves this thread, and whatever it starts from now on, to the near end.
    ///
    /// # Errors
    /// Of the system.
    pub fn move_to_near_end(&self) -> anyhow::Result<()> {
        let namespace = File::open(self.near.path())?;
        Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// What to put before a command that shall run at the far end.
    pub fn at_far_end(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={}", self.far.path())]
    }
}
