//! Ranks as processes: memory and listening sockets are made here and handed down, as an
//! agent does it.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, ensure};
use lockstep_shm::create_group_memory;

use crate::rank::{Answer, Order};

/// The ranks of a group, waiting for orders.
#[derive(Debug)]
pub struct Ranks {
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    child: Child,
    orders: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Ranks {
    /// Starts this program again as each of them; returns once all are warm. `nodes`: ranks of each
    /// node; `arguments` go before `rank` and what a rank is handed.
    pub fn start(nodes: &[usize], arguments: &[String]) -> anyhow::Result<Self> {
        let world: usize = nodes.iter().sum();
        let memories: Vec<OwnedFd> =
            nodes.iter().map(|_| create_group_memory()).collect::<Result<_, _>>()?;
        let listeners: Vec<TcpListener> =
            (0..world).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        let endpoints: Vec<String> = listeners
            .iter()
            .map(|it| it.local_addr().map(|address| address.to_string()))
            .collect::<Result<_, _>>()?;
        let node_of = |rank: usize| {
            let mut ends = nodes.iter().scan(0, |end, ranks| {
                *end += ranks;
                Some(*end)
            });
            ends.position(|end| rank < end).unwrap_or(0)
        };
        let mut ranks = Vec::new();
        for (rank, listener) in listeners.into_iter().enumerate() {
            let memory = &memories[node_of(rank)];
            let mut command = Command::new(env::current_exe().context("finding this program")?);
            command.args(arguments);
            command.args(["rank", "--rank", &rank.to_string()]);
            command.args(["--memory", &memory.as_raw_fd().to_string()]);
            command.args(endpoints.iter().flat_map(|at| ["--endpoint", at.as_str()]));
            // Descriptors that a program has anyway: its input is the listening socket, its output
            // the way to this process.
            let (ours, theirs) = UnixStream::pair()?;
            command.stdin(Stdio::from(OwnedFd::from(listener)));
            command.stdout(Stdio::from(OwnedFd::from(theirs)));
            let child = command.spawn().with_context(|| format!("starting rank {rank}"))?;
            let answers = BufReader::new(ours.try_clone()?);
            ranks.push(Rank { child, orders: ours, answers });
        }
        let mut ranks = Self { ranks };
        for rank in &mut ranks.ranks {
            rank.answer()?;
        }
        Ok(ranks)
    }

    /// Times so many rounds: of each the slowest rank's milliseconds, of the way that was fastest;
    /// and the ranks' greatest peak of memory.
    pub fn measure(&mut self, rounds: u32) -> anyhow::Result<(Vec<f64>, f64)> {
        for rank in &mut self.ranks {
            let mut order = serde_json::to_string(&Order { rounds })?;
            order.push('\n');
            rank.orders.write_all(order.as_bytes()).context("asking a rank")?;
        }
        let answers: Vec<Answer> =
            self.ranks.iter_mut().map(Rank::answer).collect::<Result<_, _>>()?;
        let peak = answers.iter().map(|answer| answer.peak_rss_mib).fold(0.0, f64::max);
        let ways = answers[0].ways.len();
        let slower = |way: usize| -> Vec<f64> {
            let of = |answer: &Answer| answer.ways[way].clone();
            let mut all = answers.iter().map(of);
            let first = all.next().unwrap_or_default();
            all.fold(first, |slower, other| {
                slower.into_iter().zip(other).map(|(one, other)| one.max(other)).collect()
            })
        };
        let fastest =
            (0..ways).map(slower).min_by(|one, other| middle(one).total_cmp(&middle(other)));
        Ok((fastest.context("ranks time at least one way")?, peak))
    }

    /// Ends them.
    pub fn end(self) -> anyhow::Result<()> {
        for Rank { mut child, orders, answers } in self.ranks {
            drop((orders, answers));
            let status = child.wait()?;
            ensure!(status.success(), "a rank ended with {status}");
        }
        Ok(())
    }
}

impl Rank {
    fn answer(&mut self) -> anyhow::Result<Answer> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("listening to a rank")?;
        ensure!(!line.is_empty(), "a rank has ended; what it said is above");
        serde_json::from_str(&line).with_context(|| format!("a rank said {line:?}"))
    }
}

fn middle(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::INFINITY)
}
