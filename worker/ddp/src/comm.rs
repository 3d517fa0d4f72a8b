//! The communication thread: owns the group and the hook, and runs collectives in the order they are
//! sent.

use std::{
    any::Any,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lockstep_collective::{
    Aborter, Ballot, Bucket, Dtype, Findings, GroupError, Lease, ProcessGroup, ReduceOp, Span,
    SumOrder, Tally, What,
};
use lockstep_shm::monotonic_ns;

use crate::hook::{BucketComm, Hook, HookState, HookStateError};

/// A reply may take several rounds and the work between them; the rest is slack for a thread that is
/// not scheduled. The thread's own deadlines come first, but for numbers that trickle in without end: those of one
/// bucket may take so long and no longer.
const REPLY_TIMEOUTS: u32 = 8;

/// How the gradients of a bucket become the sum over ranks.
#[derive(Debug)]
pub(crate) enum Way {
    /// Everybody gets all of it.
    Whole,
    /// Each rank gets its own part.
    Sharded,
    /// As the hook does it.
    Hook(Box<dyn Hook>),
}

/// A bucket to be reduced.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) bucket: usize,
    pub(crate) lease: Lease,
    pub(crate) order: Arc<SumOrder>,
    /// Nothing is sent: each rank keeps its own.
    pub(crate) is_local: bool,
    /// With the step's last bucket: the votes, and what the other lanes have found.
    pub(crate) ballot: Option<(Ballot, Vec<Findings>)>,
}

type Task = Box<dyn FnOnce(&mut Worker) -> Result<(), GroupError> + Send>;

enum Command {
    Reduce(Launch),
    Run(Task),
    Leave,
}

/// What became of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Done,
    Reduced { bucket: usize, launched_ns: u64, done_ns: u64, tally: Option<Tally> },
}

/// The other end of the communication thread.
#[derive(Debug)]
pub(crate) struct Comm {
    commands: Sender<Command>,
    replies: Receiver<Result<Reply, GroupError>>,
    aborter: Aborter,
    thread: Option<JoinHandle<()>>,
    /// Commands without a reply so far. At most the buckets of a step.
    outstanding: usize,
    reply_timeout: Duration,
}

/// What the thread works with.
#[derive(Debug)]
pub(crate) struct Worker {
    group: Box<dyn ProcessGroup>,
    way: Way,
    buckets: Vec<Bucket>,
    /// Own gradients of the step that are not finite, and sums.
    non_finite: bool,
    overflow: bool,
}

impl Comm {
    pub(crate) fn start(
        group: Box<dyn ProcessGroup>,
        way: Way,
        timeout: Duration,
    ) -> Result<Self, GroupError> {
        let aborter = group.aborter();
        let (commands, received) = mpsc::channel();
        let (sender, replies) = mpsc::channel();
        let buckets = group.plan().buckets.clone();
        let worker = Worker { group, way, buckets, non_finite: false, overflow: false };
        let thread = thread::Builder::new()
            .name("lockstep-comm".to_owned())
            .spawn(move || worker.run(&received, &sender))
            .map_err(|error| GroupError::Io {
                operation: "starting the communication thread",
                source: Arc::new(error),
            })?;
        Ok(Self {
            commands,
            replies,
            aborter,
            thread: Some(thread),
            outstanding: 0,
            reply_timeout: timeout.saturating_mul(REPLY_TIMEOUTS),
        })
    }

    pub(crate) fn reduce(&mut self, launch: Launch) {
        self.send(Command::Reduce(launch));
    }

    /// Waits until everything that was sent is done, shows every reply, and asks the thread.
    pub(crate) fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Worker) -> T + Send + 'static,
        see: impl FnMut(Reply),
    ) -> Result<T, GroupError> {
        let (sender, receiver) = mpsc::channel();
        self.send(Command::Run(Box::new(move |worker| {
            // The receiver waits for the end of this task.
            sender.send(question(worker)).ok();
            Ok(())
        })));
        self.replies(see)?;
        receiver.recv().map_err(|_| GroupError::Aborted { by: None })
    }

    /// Runs `task` on the thread and waits for it.
    pub(crate) fn run(
        &mut self,
        task: impl FnOnce(&mut Worker) -> Result<(), GroupError> + Send + 'static,
    ) -> Result<(), GroupError> {
        self.send(Command::Run(Box::new(task)));
        self.replies(|_| {})
    }

    /// Waits until everything that was sent is done, and shows every reply.
    pub(crate) fn replies(&mut self, mut see: impl FnMut(Reply)) -> Result<(), GroupError> {
        while 0 < self.outstanding {
            match self.replies.recv_timeout(self.reply_timeout) {
                Ok(reply) => see(reply?),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.aborter.abort();
                    return Err(GroupError::Aborted { by: None });
                }
            }
            self.outstanding -= 1;
        }
        Ok(())
    }

    /// Ends the thread without disturbing the others.
    pub(crate) fn close(mut self) {
        self.send(Command::Leave);
        self.join();
    }

    fn send(&mut self, command: Command) {
        // Fails only if the thread is gone, which the wait for the reply reports.
        if self.commands.send(command).is_ok() {
            self.outstanding += 1;
        } else {
            self.outstanding = self.outstanding.max(1);
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let ended: Result<(), Box<dyn Any + Send>> = thread.join();
            if ended.is_err() {
                tracing::error!("the communication thread panicked");
            }
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // Nobody waits for long once the group is given up. After `close` there is nothing to join.
        if self.thread.is_some() {
            self.aborter.abort();
            let (closed, _) = mpsc::channel();
            self.commands = closed;
            self.join();
        }
    }
}

impl Worker {
    fn run(mut self, commands: &Receiver<Command>, replies: &Sender<Result<Reply, GroupError>>) {
        while let Ok(command) = commands.recv() {
            let reply = match command {
                Command::Reduce(launch) => self.reduce(launch),
                Command::Run(task) => task(&mut self).map(|()| Reply::Done),
                Command::Leave => return self.group.leave(),
            };
            if replies.send(reply).is_err() {
                return;
            }
        }
    }

    /// The group, for collectives between steps.
    pub(crate) fn group(&mut self) -> &mut dyn ProcessGroup {
        &mut *self.group
    }

    /// What was found since the last vote, for that of another lane.
    pub(crate) fn take_findings(&mut self) -> Findings {
        self.group.take_findings()
    }

    /// What the hook carries from step to step.
    pub(crate) fn hook_state(&self) -> HookState {
        match &self.way {
            Way::Hook(hook) => hook.state(),
            Way::Whole | Way::Sharded => HookState::default(),
        }
    }

    pub(crate) fn restore_hook(&mut self, state: &HookState) -> Result<(), HookStateError> {
        match &mut self.way {
            Way::Hook(hook) => hook.restore(state),
            Way::Whole | Way::Sharded => state.check_lens(0, 0),
        }
    }

    /// The step is not applied.
    pub(crate) fn drop_leftovers(&mut self) {
        if let Way::Hook(hook) = &mut self.way {
            hook.drop_leftovers();
        }
    }

    fn reduce(&mut self, launch: Launch) -> Result<Reply, GroupError> {
        let launched_ns = monotonic_ns();
        let Launch { bucket, lease, order, is_local, ballot } = launch;
        let what = What::Bucket(bucket);
        let span = Span::floats(lease.range());
        let (lease, tally) = match (&mut self.way, ballot) {
            (Way::Whole, Some((ballot, findings))) if !is_local => {
                findings.into_iter().for_each(|it| self.group.add_findings(it));
                let voted = self.group.all_reduce_and_vote(bucket, lease, span, &order, ballot)?;
                (voted.0, Some(voted.1))
            }
            (way, ballot) => {
                let lease = match way {
                    _ if is_local => {
                        self.non_finite |= !are_finite(self.group.floats_mut(&lease));
                        lease
                    }
                    Way::Whole => {
                        self.group.all_reduce(what, lease, span, ReduceOp::Sum, &order)?
                    }
                    Way::Sharded => {
                        self.group.reduce_scatter(what, lease, span, ReduceOp::Sum, &order)?
                    }
                    Way::Hook(_) => self.reduce_by_hook(bucket, lease, &order)?,
                };
                match ballot {
                    None => (lease, None),
                    Some((ballot, findings)) => {
                        findings.into_iter().for_each(|it| self.group.add_findings(it));
                        let voted = self.vote(bucket, lease, &order, ballot)?;
                        (voted.0, Some(voted.1))
                    }
                }
            }
        };
        drop(lease);
        Ok(Reply::Reduced { bucket, launched_ns, done_ns: monotonic_ns(), tally })
    }

    /// The votes alone.
    fn vote(
        &mut self,
        bucket: usize,
        lease: Lease,
        order: &SumOrder,
        ballot: Ballot,
    ) -> Result<(Lease, Tally), GroupError> {
        let nothing = Span { first: lease.range().start, dtype: Dtype::F32, len: 0 };
        let non_finite = ballot.non_finite | std::mem::take(&mut self.non_finite);
        if let Way::Hook(_) = &self.way {
            self.group.judge(std::mem::take(&mut self.overflow));
        }
        let ballot = Ballot { non_finite, ..ballot };
        self.group.all_reduce_and_vote(bucket, lease, nothing, order, ballot)
    }

    fn reduce_by_hook(
        &mut self,
        bucket: usize,
        lease: Lease,
        order: &Arc<SumOrder>,
    ) -> Result<Lease, GroupError> {
        let Way::Hook(hook) = &mut self.way else { return Ok(lease) };
        self.non_finite |= !are_finite(self.group.floats_mut(&lease));
        let params = &self.buckets[bucket].params;
        let group = &mut *self.group;
        let mut comm =
            LeasedBucket { group, lease: Some(lease), what: What::Bucket(bucket), order };
        hook.reduce(bucket, params, &mut comm)?;
        let lease = comm.lease.ok_or(GroupError::Aborted { by: None })?;
        self.overflow |= !are_finite(self.group.floats_mut(&lease));
        Ok(lease)
    }
}

/// A bucket in the hands of a hook.
struct LeasedBucket<'a> {
    group: &'a mut dyn ProcessGroup,
    /// Gone after an error.
    lease: Option<Lease>,
    what: What,
    order: &'a SumOrder,
}

impl BucketComm for LeasedBucket<'_> {
    fn world_size(&self) -> usize {
        self.group.world_size()
    }

    fn bucket(&mut self) -> &mut [f32] {
        match &self.lease {
            Some(lease) => self.group.floats_mut(lease),
            None => &mut [],
        }
    }

    fn all_reduce(&mut self, dtype: Dtype, len: usize) -> Result<(), GroupError> {
        let lease = self.lease.take().ok_or(GroupError::Aborted { by: None })?;
        let span = Span { first: lease.range().start, dtype, len };
        let lease = self.group.all_reduce(self.what, lease, span, ReduceOp::Sum, self.order)?;
        self.lease = Some(lease);
        Ok(())
    }
}

/// Branch-free, so that it is done in vectors.
fn are_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    !values.iter().fold(false, |any, value| any | (value.to_bits() & EXPONENT == EXPONENT))
}
