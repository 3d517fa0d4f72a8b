//! The communication thread: owns the group and runs collectives in the order they are sent.

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
    Aborter, Ballot, GroupError, Lease, ProcessGroup, ShmGroup, SumOrder, Tally,
};

/// A reply may take two rounds and the sum between them; the rest is slack for a thread that is
/// not scheduled. The thread's own deadlines come first.
const REPLY_TIMEOUTS: u32 = 4;

enum Command {
    Reduce { bucket: usize, lease: Lease, order: Arc<SumOrder> },
    ReduceAndVote { bucket: usize, lease: Lease, order: Arc<SumOrder>, ballot: Ballot },
    Broadcast { root: usize, lease: Lease, values: Vec<f32> },
    SumF64 { values: Vec<f64> },
    Barrier,
    Leave,
}

pub(crate) enum Reply {
    Done,
    Voted(Tally),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
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

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Done => "Done",
            Self::Voted(_) => "Voted",
            Self::Floats(_) => "Floats",
            Self::Doubles(_) => "Doubles",
        })
    }
}

impl Comm {
    pub(crate) fn start(group: ShmGroup, timeout: Duration) -> Result<Self, GroupError> {
        let aborter = group.aborter();
        let (commands, received) = mpsc::channel();
        let (sender, replies) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("lockstep-comm".to_owned())
            .spawn(move || run(group, &received, &sender))
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

    pub(crate) fn aborter(&self) -> Aborter {
        self.aborter.clone()
    }

    pub(crate) fn reduce(&mut self, bucket: usize, lease: Lease, order: Arc<SumOrder>) {
        self.send(Command::Reduce { bucket, lease, order });
    }

    pub(crate) fn reduce_and_vote(
        &mut self,
        bucket: usize,
        lease: Lease,
        order: Arc<SumOrder>,
        ballot: Ballot,
    ) {
        self.send(Command::ReduceAndVote { bucket, lease, order, ballot });
    }

    pub(crate) fn broadcast(
        &mut self,
        root: usize,
        lease: Lease,
        values: Vec<f32>,
    ) -> Result<Vec<f32>, GroupError> {
        self.send(Command::Broadcast { root, lease, values });
        match self.last_reply()? {
            Reply::Floats(values) => Ok(values),
            other => Err(out_of_order(&other)),
        }
    }

    pub(crate) fn sum_f64(&mut self, values: Vec<f64>) -> Result<Vec<f64>, GroupError> {
        self.send(Command::SumF64 { values });
        match self.last_reply()? {
            Reply::Doubles(values) => Ok(values),
            other => Err(out_of_order(&other)),
        }
    }

    pub(crate) fn barrier(&mut self) -> Result<(), GroupError> {
        self.send(Command::Barrier);
        self.last_reply().map(drop)
    }

    /// Waits until everything that was sent is done; the answer is that of the last command.
    pub(crate) fn last_reply(&mut self) -> Result<Reply, GroupError> {
        let mut last = Reply::Done;
        while 0 < self.outstanding {
            last = match self.replies.recv_timeout(self.reply_timeout) {
                Ok(reply) => reply?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.aborter.abort();
                    return Err(GroupError::Aborted { by: None });
                }
            };
            self.outstanding -= 1;
        }
        Ok(last)
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

fn run(
    mut group: ShmGroup,
    commands: &Receiver<Command>,
    replies: &Sender<Result<Reply, GroupError>>,
) {
    while let Ok(command) = commands.recv() {
        let reply = match command {
            Command::Reduce { bucket, lease, order } => {
                group.all_reduce(bucket, lease, &order).map(|()| Reply::Done)
            }
            Command::ReduceAndVote { bucket, lease, order, ballot } => {
                group.all_reduce_and_vote(bucket, lease, &order, ballot).map(Reply::Voted)
            }
            Command::Broadcast { root, lease, mut values } => {
                group.broadcast(root, lease, &mut values).map(|()| Reply::Floats(values))
            }
            Command::SumF64 { mut values } => {
                group.all_reduce_f64(&mut values).map(|()| Reply::Doubles(values))
            }
            Command::Barrier => group.barrier().map(|()| Reply::Done),
            Command::Leave => return group.leave(),
        };
        if replies.send(reply).is_err() {
            return;
        }
    }
}

fn out_of_order(reply: &Reply) -> GroupError {
    tracing::error!(?reply, "a reply of another kind than asked for");
    GroupError::Aborted { by: None }
}
