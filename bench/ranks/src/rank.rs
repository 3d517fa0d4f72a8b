//! One rank's end: what it is handed, and the orders of its parent.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    time::Instant,
};

use anyhow::Context as _;
use clap::Args;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::peak_rss_mib;

/// What a rank is handed.
#[derive(Debug, Args)]
pub struct RankArguments {
    /// Which rank.
    #[arg(long)]
    pub rank: usize,
    /// Descriptor of the memory of its node.
    #[arg(long)]
    memory: i32,
    /// Where each rank listens.
    #[arg(long = "endpoint")]
    pub endpoints: Vec<SocketAddr>,
}

impl RankArguments {
    /// The memory of its node.
    pub fn memory(&self) -> anyhow::Result<OwnedFd> {
        lockstep_shm::inherited_group_memory(self.memory).context("opening the node's memory")
    }

    /// Its own listening socket: its standard input.
    pub fn listener(&self) -> anyhow::Result<TcpListener> {
        Ok(TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.endpoints.len()
    }
}

/// What the parent asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) rounds: u32,
}

/// Milliseconds of each round, for each way to do the same.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) ways: Vec<Vec<f64>>,
    pub(crate) peak_rss_mib: f64,
}

/// A core for each rank, as on every side of a benchmark; where there are fewer the system decides.
pub fn take_core(rank: usize, world: usize) -> anyhow::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if world <= cores.len() {
        let mut own = CpuSet::new();
        own.set(cores[rank]);
        sched_setaffinity(None, &own)?;
    }
    Ok(())
}

/// Answers orders until there are no more. `time` answers with the milliseconds of so many rounds,
/// for each way to do the same.
pub fn serve(
    warm_up: u32,
    mut time: impl FnMut(u32) -> anyhow::Result<Vec<Vec<f64>>>,
) -> anyhow::Result<()> {
    let mut parent = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let orders = BufReader::new(parent.try_clone()?);
    let mut answer = |ways: Vec<Vec<f64>>| -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&Answer { ways, peak_rss_mib: peak_rss_mib()? })?;
        line.push('\n');
        parent.write_all(line.as_bytes()).context("answering")
    };
    answer(time(warm_up)?)?;
    for line in orders.lines() {
        let Order { rounds } = serde_json::from_str(&line?)?;
        answer(time(rounds)?)?;
    }
    Ok(())
}

/// Since then.
pub fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
