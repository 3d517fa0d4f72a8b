//! All connections of one rank, and the loop that moves an exchange over them.

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    connection::{Connection, Incoming, Outgoing, Payload},
    exchange::{Exchange, NoNumbers, Outbox},
    head::{Head, Kind, NOTE_BYTES_CAP, pause_units},
    pump::{Advance, advance, read_away, write_all_it_takes},
};
use crate::{control::Control, op::OpWords, pause::LONGEST_WAIT, verdict::Verdict};

/// How often a rank that waits for the network looks whether its own node has given the group up.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// How long a verdict may take to be handed to the network.
const FAREWELL: Duration = Duration::from_millis(200);

/// Until when a rank waits: it is over when nothing has come for this long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    silence: Duration,
    at: Instant,
    /// Whatever pauses are announced.
    last: Instant,
}

impl Deadline {
    pub(crate) fn after(silence: Duration) -> Self {
        let now = Instant::now();
        Self { silence, at: now + silence, last: now + silence * LONGEST_WAIT }
    }

    fn extend(&mut self) {
        *self = Self::after(self.silence);
    }
}

/// Why an exchange ended without its result.
#[derive(Debug)]
pub(crate) enum MeshError {
    /// Nothing came for too long; bit r: from rank r, or from one that waits for rank r.
    Silent { missing: u64 },
    /// The connection is closed.
    Gone { rank: usize },
    /// The other end says that the group is given up.
    Verdict(Verdict),
    /// The own node has given the group up.
    GivenUp,
    /// What came is no message of ours, or none that belongs here.
    Garbage { rank: usize, detail: String },
    /// The other end is at another collective.
    OtherOp { rank: usize, theirs: OpWords },
}

/// A collective has at most so many exchanges: their numbers are multiples of this and what follows.
pub(crate) const EXCHANGES: u64 = 4;

/// Which exchange, as all ranks count, and what it is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The own rank.
    pub(crate) rank: usize,
    /// Goes up from one exchange to the next, on ranks that take no part in it, too.
    pub(crate) number: u64,
    pub(crate) op: OpWords,
    pub(crate) deadline: Deadline,
}

/// The connections of one rank, in order of rank.
#[derive(Debug)]
pub(crate) struct Mesh {
    connections: Vec<Connection>,
    /// Bit r: in the last exchange something was still to come from rank r when this was last looked at.
    waited_for: u64,
    /// Bit r: something of the last exchange has come from rank r, so that it had entered.
    heard: u64,
}

impl Mesh {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        Self { connections, waited_for: 0, heard: 0 }
    }

    /// Whom the last exchange was still waiting for, if it ended without its result.
    pub(crate) fn waited_for(&self) -> u64 {
        self.unheard(self.waited_for)
    }

    /// Of those that something is still to come from, the ones of whom nothing has come at all: the others may only lack what
    /// these have not sent. All of them, if there are none such.
    fn unheard(&self, late: u64) -> u64 {
        match late & !self.heard {
            0 => late,
            unheard => unheard,
        }
    }

    /// One exchange: `begin` sends what goes first.
    pub(super) fn run<E: Exchange>(
        &mut self,
        call: Call,
        exchange: &mut E,
        begin: impl FnOnce(&mut E, &mut Outbox<'_>),
        control: &Control,
    ) -> Result<(), MeshError> {
        let Call { rank, number, op, mut deadline } = call;
        let outbox = &mut Outbox { connections: &mut self.connections, exchange: number, op };
        begin(exchange, outbox);
        self.heard = 0;
        self.waited_for = exchange.waits_for();
        for connection in &mut self.connections {
            connection.blocked_on = 0;
        }
        loop {
            let mut has_moved = false;
            for index in 0..self.connections.len() {
                has_moved |= write_all_it_takes(&mut self.connections[index], exchange)?;
                has_moved |= self.read_all_there_is(index, call, exchange)?;
            }
            let waits_for = exchange.waits_for();
            self.waited_for = waits_for;
            if waits_for == 0 && self.connections.iter().all(Connection::is_flushed) {
                return Ok(());
            }
            let is_missed = |it: &&Connection| it.is_closed && waits_for >> it.rank & 1 == 1;
            if let Some(Connection { rank, .. }) = self.connections.iter().find(is_missed) {
                return Err(MeshError::Gone { rank: *rank });
            }
            if has_moved {
                deadline.extend();
            } else {
                self.wait(waits_for, deadline, (rank, control))?;
            }
        }
    }

    /// Tells everybody, as far as that is possible at once, that this rank waits for others, which may pause.
    pub(crate) fn say_waiting(
        &mut self,
        exchange: u64,
        op: OpWords,
        (ranks, pause): (u64, Duration),
    ) {
        let partial = pause_units(pause);
        self.say(Head {
            kind: Kind::Waiting,
            partial,
            exchange,
            op,
            first: ranks,
            bytes: 0,
            check: 0,
        });
    }

    /// Tells everybody that this rank itself will be busy for so long at most; zero: that it no longer is.
    pub(crate) fn say_pause(&mut self, longest: Duration) {
        let (kind, partial, op) = (Kind::Waiting, pause_units(longest), [0; 2]);
        self.say(Head { kind, partial, exchange: 0, op, first: 0, bytes: 0, check: 0 });
    }

    fn say(&mut self, head: Head) {
        for connection in &mut self.connections {
            if connection.outgoing.is_empty() {
                connection.outgoing.push_back(Outgoing::new(head, Payload::Nothing));
            }
            // A connection that is broken shows itself in the next exchange.
            drop(write_all_it_takes(connection, &mut NoNumbers));
        }
    }

    /// Tells everybody why the group is given up, as far as the network takes it soon.
    pub(crate) fn say_farewell(&mut self, verdict: &Verdict) {
        let text = verdict.to_text(NOTE_BYTES_CAP);
        let bytes = u32::try_from(text.len()).unwrap_or(0);
        let (kind, op) = (Kind::Abort, [0; 2]);
        let head = Head { kind, partial: 0, exchange: 0, op, first: 0, bytes, check: 0 };
        for connection in &mut self.connections {
            // In the middle of a message nothing else can be said; closing says it then.
            if connection.sent == 0 {
                connection.outgoing.clear();
                let payload = Payload::Bytes(text.clone());
                connection.outgoing.push_back(Outgoing::new(head, payload));
            } else {
                connection.outgoing.truncate(0);
            }
        }
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until && !self.connections.iter().all(Connection::is_flushed) {
            self.connections.retain_mut(|connection| {
                read_away(connection);
                write_all_it_takes(connection, &mut NoNumbers).is_ok()
            });
            self.poll(until);
        }
    }

    /// Reads away what nobody will read, so that closing does not throw away what was sent.
    pub(crate) fn close(mut self) {
        self.connections.iter_mut().for_each(read_away);
    }

    fn read_all_there_is<E: Exchange>(
        &mut self,
        index: usize,
        Call { number, op, .. }: Call,
        exchange: &mut E,
    ) -> Result<bool, MeshError> {
        let mut has_moved = false;
        loop {
            let connection = &mut self.connections[index];
            let rank = connection.rank;
            match advance(connection, op, number, exchange)? {
                Advance::Blocked => return Ok(has_moved),
                Advance::Moved => has_moved = true,
                Advance::Complete(head, place) => {
                    has_moved = true;
                    self.heard |= 1 << rank;
                    let connections = &mut self.connections;
                    let mut outbox = Outbox { connections, exchange: number, op };
                    exchange.arrived(rank, &head, place, &mut outbox);
                }
            }
        }
    }

    /// Sleeps until something can be read or written.
    fn wait(
        &mut self,
        waits_for: u64,
        deadline: Deadline,
        (rank, control): (usize, &Control),
    ) -> Result<(), MeshError> {
        if control.is_given_up() {
            return Err(MeshError::GivenUp);
        }
        let now = Instant::now();
        let unsent = self.connections.iter().filter(|connection| !connection.is_flushed());
        let silent = unsent.fold(waits_for, |all, connection| all | 1 << connection.rank);
        let excused = self.excused(silent, now);
        if let Some(until) = excused.values().max() {
            // Ranks of the own node wait for this one.
            control.passed_on(rank).begin(until.saturating_duration_since(now));
        }
        let late = silent & !excused.keys().fold(0, |all, rank| all | 1 << rank);
        if deadline.last <= now || (deadline.at <= now && late != 0) {
            let late = if late == 0 { silent } else { late };
            return Err(MeshError::Silent { missing: self.blamed(self.unheard(late)) });
        }
        self.poll(now + LOOK_AROUND);
        Ok(())
    }

    /// Those of the silent ones who have said that they are busy, or wait for such, and until when.
    fn excused(&self, silent: u64, now: Instant) -> BTreeMap<usize, Instant> {
        let is_silent = |it: &&Connection| silent >> it.rank & 1 == 1;
        let excused = self.connections.iter().filter(is_silent).filter_map(|connection| {
            let until = connection.excused_until().filter(|until| now < *until)?;
            Some((connection.rank, until))
        });
        excused.collect()
    }

    /// Those whom the silent ones said they wait for, in place of them.
    fn blamed(&self, silent: u64) -> u64 {
        let is_silent = |connection: &&Connection| silent >> connection.rank & 1 == 1;
        self.connections.iter().filter(is_silent).fold(0, |all, connection| {
            all | match connection.blocked_on {
                0 => 1 << connection.rank,
                others => others,
            }
        })
    }

    fn poll(&self, until: Instant) {
        // One whose next message belongs to a later exchange would be readable all the time.
        let is_open = |connection: &&Connection| {
            let can_come =
                !connection.is_closed && !matches!(connection.incoming, Incoming::Ready(_));
            let is_blocked = connection.channel.links().are_blocked();
            (can_come || !connection.is_flushed()) && !is_blocked
        };
        let mut fds: Vec<PollFd<'_>> = self
            .connections
            .iter()
            .filter(is_open)
            .map(|connection| {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::OUT, !connection.is_flushed());
                let is_waiting = matches!(connection.incoming, Incoming::Ready(_));
                flags.set(PollFlags::IN, !connection.is_closed && !is_waiting);
                PollFd::from_borrowed_fd(connection.channel.stream().as_fd(), flags)
            })
            .collect();
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // Interrupted or refused: the caller looks again, and its deadline stands.
        poll(&mut fds, Some(&timeout)).ok();
    }
}
