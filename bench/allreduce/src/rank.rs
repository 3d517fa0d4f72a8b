//! One rank: joins the group, then times calls on the thread that communicates, without a hand-off.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::ensure;
use lockstep_bench_ranks::{RankArguments, milliseconds, serve, take_core};
use lockstep_collective::{
    Bucket, CpuGroup, Dtype, Formed, Interrupt, Join, Links, Network, OwnArena, Plan, PlanParam,
    ProcessGroup as _, ReduceOp, Span, SumOrder, Topology, What as Collective,
};

use crate::{
    case::{Case, RANKS, Way, What},
    limit,
};

/// No call takes this long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Calls before the first that counts: they touch every page.
const WARM_UP: u32 = 3;
/// Barriers before a call: whoever slept in the first is awake in the last.
const BARRIERS: usize = 4;

/// Answers orders until there are no more.
pub(crate) fn run(
    case: Case,
    arguments: &RankArguments,
    limit: bool,
    threads: usize,
) -> anyhow::Result<()> {
    match (limit, case.way) {
        (true, Way::Tcp) => {
            let mut pair = limit::Pair::connect(case, arguments)?;
            serve(WARM_UP, |calls| Ok(vec![pair.time(calls)?]))
        }
        (true, Way::Shm) => {
            let mut timed = Timed::form(case, arguments, threads)?;
            serve(WARM_UP, |calls| limit::time_memory(&mut timed, calls))
        }
        (false, _) => {
            let mut timed = Timed::form(case, arguments, threads)?;
            serve(WARM_UP, |calls| Ok(vec![timed.time(calls)?]))
        }
    }
}

/// A rank in its group.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) case: Case,
    pub(crate) group: CpuGroup,
    pub(crate) arena: OwnArena,
    order: SumOrder,
    calls: u32,
}

impl Timed {
    fn form(case: Case, arguments: &RankArguments, threads: usize) -> anyhow::Result<Self> {
        let memory: OwnedFd = arguments.memory()?;
        let mut next = 0;
        let node = |ranks: &usize| {
            next += ranks;
            next - ranks..next
        };
        let topology = Topology::new(case.nodes().iter().map(node).collect())?;
        let network = match case.way {
            Way::Shm => None,
            Way::Tcp => Some(Network {
                listener: arguments.listener()?,
                endpoints: arguments.endpoints.iter().map(|address| vec![*address]).collect(),
                key: b"of this benchmark".to_vec(),
                generation: 1,
                encrypt: false,
                links: Links::default(),
            }),
        };
        let join = Join {
            memory: memory.as_fd(),
            rank: arguments.rank,
            topology,
            network,
            timeout: TIMEOUT,
            formation: TIMEOUT,
            threads_per_rank: threads,
            record: None,
            interrupt: Interrupt::default(),
        };
        let Formed { group, arena, board: _ } = CpuGroup::form(&join, &plan(case))?;
        // Only now: the group counts the cores that its ranks may use.
        take_core(arguments.rank, RANKS)?;
        Ok(Self { case, group, arena, order: SumOrder::in_rank_order(0..RANKS), calls: 0 })
    }

    /// Milliseconds of each of so many calls.
    fn time(&mut self, calls: u32) -> anyhow::Result<Vec<f64>> {
        (0..calls).map(|_| self.call()).collect()
    }

    fn call(&mut self) -> anyhow::Result<f64> {
        self.calls += 1;
        match self.case.what {
            What::Barrier => {
                self.meet()?;
                let began = Instant::now();
                self.group.barrier()?;
                Ok(milliseconds(began))
            }
            What::AllReduce { bytes, dtype } => {
                self.write(dtype, own_value(self.group.rank(), self.calls));
                let floats = self.case.floats();
                let lease = self.arena.lease(0..1, 0..floats);
                let span = Span { first: 0, dtype, len: bytes / dtype.bytes() };
                let what = Collective::Bucket(0);
                self.meet()?;
                let began = Instant::now();
                let lease = self.group.all_reduce(what, lease, span, ReduceOp::Sum, &self.order)?;
                let took = milliseconds(began);
                drop(lease);
                let sum = (0..RANKS).map(|rank| own_value(rank, self.calls)).sum();
                let expected = bits(dtype, sum);
                let reduced = self.arena.floats(0, 0..floats);
                // A few of them, so that the caches are not filled by looking.
                let places = [0, floats / 2 - 1, floats / 2, floats - 1];
                let is_right = places.iter().all(|at| reduced[*at].to_bits() == expected);
                ensure!(is_right, "the sum is wrong in call {}", self.calls);
                Ok(took)
            }
        }
    }

    /// Both ranks go on from here at the same time.
    pub(crate) fn meet(&mut self) -> anyhow::Result<()> {
        for _ in 0..BARRIERS {
            self.group.barrier()?;
        }
        Ok(())
    }

    /// Writes the numbers anew, as a backward pass does: they are where that leaves them, in the
    /// caches of the core that computed them as far as they fit.
    pub(crate) fn write(&mut self, dtype: Dtype, value: f32) {
        let value = f32::from_bits(bits(dtype, value));
        self.arena.floats_mut(0, 0..self.case.floats()).fill(value);
    }
}

/// Small whole numbers, exact in every kind; other ones in each call.
pub(crate) fn own_value(rank: usize, calls: u32) -> f32 {
    (calls % 61) as f32 + rank as f32 + 1.0
}

/// A float of the arena with one f32 or two bf16 in it.
fn bits(dtype: Dtype, value: f32) -> u32 {
    match dtype {
        Dtype::Bf16 => (value.to_bits() >> 16) * 0x1_0001,
        Dtype::F32 | Dtype::F64 | Dtype::I64 | Dtype::F16 => value.to_bits(),
    }
}

/// One bucket of one parameter; a second arena is what the limit writes to.
fn plan(case: Case) -> Plan {
    let floats = case.floats();
    let params = vec![PlanParam { name: "numbers".to_owned(), shape: vec![floats] }];
    Plan {
        nodes: case.nodes(),
        arena_len: floats,
        slots: 2,
        settings: Vec::new(),
        grain_rows: 0,
        grain_columns: 0,
        buckets: vec![Bucket { range: 0..floats, params }],
    }
}
