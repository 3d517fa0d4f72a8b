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
