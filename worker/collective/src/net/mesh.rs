//! All connections of one rank, and the loop that moves an exchange over them.

use std::{
    io,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    connection::{Connection, Incoming, Outgoing, Payload, Place},
    head::{Head, Kind, NOTE_BYTES_CAP},
};
use crate::{control::Control, op::OpWords, verdict::Verdict};

/// How often a rank that waits for the network looks whether its own node has given the group up.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// How long a verdict may take to be handed to the network.
const FAREWELL: Duration = Duration::from_millis(200);

/// Until when a rank waits: it is over when nothing has come for this long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    silence: Duration,
    at: Instant,
}

impl Deadline {
    pub(crate) fn after(silence: Duration) -> Self {
        Self { silence, at: Instant::now() + silence }
    }

    fn extend(&mut self) {
        self.at = Instant::now() + self.silence;
    }
}

/// What an exchange does with the messages of the current collective.
pub(super) trait Exchange {
    /// Where the payload of a message goes; or what is wrong with it.
    fn place(&mut self, from: usize, head: &Head) -> Result<Place, String>;

    /// Memory of a [`Place::Arena`].
    fn arena_mut(&mut self, numbers: std::ops::Range<usize>) -> &mut [u8];

    /// Memory of a [`Payload::Arena`].
    fn arena(&self, slot: usize, numbers: std::ops::Range<usize>) -> &[u8];

    /// Adds up a [`Payload::Partial`].
    fn add_up(&mut self, partial: usize, numbers: std::ops::Range<usize>) -> lockstep_shm::Buffer;

    /// Memory that has been sent can be used again.
    fn reuse(&mut self, buffer: lockstep_shm::Buffer);

    /// A message is complete.
    fn arrived(&mut self, from: usize, head: &Head, place: Place, outbox: &mut Outbox<'_>);

    /// Bit r: something is still to come from rank r.
    fn waits_for(&self) -> u64;
}

/// The way to send within an exchange.
#[derive(Debug)]
pub(super) struct Outbox<'a> {
    connections: &'a mut [Connection],
    exchange: u64,
    op: OpWords,
}

impl Outbox<'_> {
    /// Queues a message of the current exchange.
    ///
    /// # Panics
    /// If there is no connection to that rank.
    pub(super) fn send(
        &mut self,
        to: usize,
        kind: Kind,
        (partial, first): (u16, usize),
        (payload, bytes): (Payload, usize),
    ) {
        let (exchange, op) = (self.exchange, self.op);
        let bytes = u32::try_from(bytes).expect("messages are cut far below 4 GiB");
        let head = Head { kind, partial, exchange, op, first: first as u64, bytes };
        let connection = self.connections.iter_mut().find(|connection| connection.rank == to);
        let connection = connection.unwrap_or_else(|| panic!("no connection to rank {to}"));
        connection.outgoing.push_back(Outgoing { head, payload });
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
    /// Goes up from one exchange to the next, on ranks that take no part in it, too.
    pub(crate) number: u64,
    pub(crate) op: OpWords,
    pub(crate) deadline: Deadline,
}

/// The connections of one rank, in order of rank.
#[derive(Debug)]
pub(crate) struct Mesh {
    connections: Vec<Connection>,
}

impl Mesh {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        Self { connections }
    }

    /// One exchange: `begin` sends what goes first.
    pub(super) fn run<E: Exchange>(
        &mut self,
        call: Call,
        exchange: &mut E,
        begin: impl FnOnce(&mut E, &mut Outbox<'_>),
        control: &Control,
    ) -> Result<(), MeshError> {
        let Call { number, op, mut deadline } = call;
        let outbox = &mut Outbox { connections: &mut self.connections, exchange: number, op };
        begin(exchange, outbox);
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
                self.wait(waits_for, deadline, control)?;
            }
        }
    }

    /// Tells everybody, as far as that is possible at once, that this rank waits for others.
    pub(crate) fn say_waiting(&mut self, exchange: u64, op: OpWords, ranks: u64) {
        let head = Head { kind: Kind::Waiting, partial: 0, exchange, op, first: ranks, bytes: 0 };
        for connection in &mut self.connections {
            if connection.outgoing.is_empty() {
                connection.outgoing.push_back(Outgoing { head, payload: Payload::Nothing });
            }
            // A connection that is broken shows itself in the next exchange.
            drop(write_all_it_takes(connection, &mut NoNumbers));
        }
    }

    /// Tells everybody why the group is given up, as far as the network takes it soon.
    pub(crate) fn say_farewell(&mut self, verdict: &Verdict) {
        let text = verdict.to_text(NOTE_BYTES_CAP);
        let bytes = u32::try_from(text.len()).unwrap_or(0);
        let head = Head { kind: Kind::Abort, partial: 0, exchange: 0, op: [0; 2], first: 0, bytes };
        for connection in &mut self.connections {
            // In the middle of a message nothing else can be said; closing says it then.
            if connection.sent == 0 {
                connection.outgoing.clear();
                let payload = Payload::Bytes(text.clone());
                connection.outgoing.push_back(Outgoing { head, payload });
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
        control: &Control,
    ) -> Result<(), MeshError> {
        if control.is_given_up() {
            return Err(MeshError::GivenUp);
        }
        let now = Instant::now();
        if deadline.at <= now {
            let unsent = self.connections.iter().filter(|connection| !connection.is_flushed());
            let silent = unsent.fold(waits_for, |all, connection| all | 1 << connection.rank);
            return Err(MeshError::Silent { missing: self.blamed(silent) });
        }
        self.poll(deadline.at.min(now + LOOK_AROUND));
        Ok(())
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
            can_come || !connection.is_flushed()
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

enum Advance {
    /// Nothing more has come, or what came belongs to a later exchange.
    Blocked,
    Moved,
    Complete(Head, Place),
}

/// Reads one piece.
fn advance<E: Exchange>(
    connection: &mut Connection,
    op: OpWords,
    number: u64,
    exchange: &mut E,
) -> Result<Advance, MeshError> {
    let rank = connection.rank;
    if connection.is_closed {
        return Ok(Advance::Blocked);
    }
    match &mut connection.incoming {
        Incoming::Head { bytes, filled } => {
            let read = connection.channel.read(&mut bytes[*filled..]);
            if *filled == 0 && is_end(&read) {
                connection.is_closed = true;
                return Ok(Advance::Blocked);
            }
            let Some(read) = came(read, rank)? else { return Ok(Advance::Blocked) };
            *filled += read;
            if *filled == Head::BYTES {
                let head = Head::decode(bytes);
                let detail = || format!("{:02x?} where a message begins", &bytes[..8]);
                let head = head.ok_or_else(|| MeshError::Garbage { rank, detail: detail() })?;
                connection.incoming = Incoming::Ready(head);
            }
            Ok(Advance::Moved)
        }
        Incoming::Ready(head) => {
            let head = *head;
            begin_payload(connection, head, (op, number), exchange)
        }
        Incoming::Payload { head, place, filled } => {
            let wanted = head.bytes as usize;
            if *filled < wanted {
                let into = match place {
                    Place::Bytes(bytes) => &mut bytes[..],
                    Place::Buffer(buffer) => buffer.bytes_mut(),
                    Place::Arena(numbers) => exchange.arena_mut(numbers.clone()),
                };
                let read = connection.channel.read(&mut into[*filled..wanted]);
                let Some(read) = came(read, rank)? else { return Ok(Advance::Blocked) };
                *filled += read;
            }
            if *filled < wanted {
                return Ok(Advance::Moved);
            }
            let done = std::mem::replace(&mut connection.incoming, Incoming::nothing());
            let Incoming::Payload { head, place, .. } = done else { return Ok(Advance::Moved) };
            match (&head.kind, &place) {
                (Kind::Abort, Place::Bytes(text)) => Err(match Verdict::of_text(text) {
                    Some(verdict) => MeshError::Verdict(verdict),
                    None => MeshError::Garbage { rank, detail: "a verdict that is none".into() },
                }),
                _ => Ok(Advance::Complete(head, place)),
            }
        }
    }
}

/// Decides where the payload of a message goes, if it belongs to the current exchange.
fn begin_payload<E: Exchange>(
    connection: &mut Connection,
    head: Head,
    (op, number): (OpWords, u64),
    exchange: &mut E,
) -> Result<Advance, MeshError> {
    let rank = connection.rank;
    let sequence = |number: u64| number / EXCHANGES;
    let place = match head.kind {
        Kind::Waiting => {
            // What it said of an earlier collective is over.
            if sequence(head.exchange) == sequence(number) {
                connection.blocked_on = head.first;
            }
            connection.incoming = Incoming::nothing();
            return Ok(Advance::Moved);
        }
        Kind::Abort => note_place(&head),
        Kind::Part | Kind::Result | Kind::Note => {
            let is_other = sequence(head.exchange) == sequence(number) && head.op != op;
            if head.exchange < number || is_other {
                return Err(MeshError::OtherOp { rank, theirs: head.op });
            }
            if number < head.exchange {
                return Ok(Advance::Blocked);
            }
            connection.blocked_on = 0;
            exchange.place(rank, &head)
        }
    };
    let place = place.map_err(|detail| MeshError::Garbage { rank, detail })?;
    connection.incoming = Incoming::Payload { head, place, filled: 0 };
    Ok(Advance::Moved)
}

/// Room for a note, or what is wrong with it.
pub(super) fn note_place(head: &Head) -> Result<Place, String> {
    let bytes = head.bytes as usize;
    if NOTE_BYTES_CAP < bytes {
        return Err(format!("a note of {bytes} bytes, at most {NOTE_BYTES_CAP}"));
    }
    Ok(Place::Bytes(vec![0; bytes]))
}

/// Whether the other end has closed, or its process is gone.
fn is_end(read: &io::Result<usize>) -> bool {
    match read {
        Ok(read) => *read == 0,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::InvalidData
        ),
    }
}

/// How many bytes came, `None` when none are there yet.
fn came(read: io::Result<usize>, rank: usize) -> Result<Option<usize>, MeshError> {
    match read {
        Ok(0) => Err(MeshError::Gone { rank }),
        Ok(read) => Ok(Some(read)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            io::ErrorKind::Interrupted => Ok(None),
            io::ErrorKind::InvalidData => {
                Err(MeshError::Garbage { rank, detail: format!("what cannot be opened: {error}") })
            }
            _ => Err(MeshError::Gone { rank }),
        },
    }
}

/// Writes until the socket takes no more. Says whether anything left.
fn write_all_it_takes<E: Exchange>(
    connection: &mut Connection,
    exchange: &mut E,
) -> Result<bool, MeshError> {
    let mut has_moved = false;
    while let Some(outgoing) = connection.outgoing.front_mut() {
        if let Payload::Partial { partial, numbers } = &outgoing.payload {
            let buffer = exchange.add_up(*partial, numbers.clone());
            outgoing.payload = Payload::Buffer(buffer);
        }
        let payload = match &outgoing.payload {
            Payload::Nothing | Payload::Partial { .. } => &[][..],
            Payload::Bytes(bytes) => bytes,
            Payload::Buffer(buffer) => buffer.bytes(),
            Payload::Arena { slot, numbers } => exchange.arena(*slot, numbers.clone()),
        };
        let head = outgoing.head.encode();
        let head_sent = connection.sent.min(Head::BYTES);
        let written =
            connection.channel.write(&head[head_sent..], &payload[connection.sent - head_sent..]);
        match written {
            Ok(written) => {
                has_moved |= 0 < written;
                connection.sent += written;
            }
            Err(error) if is_busy(&error) => return Ok(has_moved),
            Err(_) => return Err(MeshError::Gone { rank: connection.rank }),
        }
        if connection.sent == Head::BYTES + outgoing.head.bytes as usize {
            connection.sent = 0;
            if let Some(Outgoing { payload: Payload::Buffer(buffer), .. }) =
                connection.outgoing.pop_front()
            {
                exchange.reuse(buffer);
            }
        }
    }
    match connection.channel.flush() {
        Ok(()) => Ok(has_moved),
        Err(error) if is_busy(&error) => Ok(has_moved),
        Err(_) => Err(MeshError::Gone { rank: connection.rank }),
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// A connection that is closed with something unread throws away what was sent on it.
fn read_away(connection: &mut Connection) {
    let mut nowhere = [0; 4096];
    while matches!(connection.channel.read(&mut nowhere), Ok(1..)) {}
}

/// For messages that carry no numbers.
struct NoNumbers;

impl Exchange for NoNumbers {
    fn place(&mut self, _: usize, _: &Head) -> Result<Place, String> {
        Err("numbers where none belong".to_owned())
    }

    fn arena_mut(&mut self, _: std::ops::Range<usize>) -> &mut [u8] {
        &mut []
    }

    fn arena(&self, _: usize, _: std::ops::Range<usize>) -> &[u8] {
        &[]
    }

    fn add_up(&mut self, _: usize, _: std::ops::Range<usize>) -> lockstep_shm::Buffer {
        lockstep_shm::Buffer::default()
    }

    fn reuse(&mut self, _: lockstep_shm::Buffer) {}

    fn arrived(&mut self, _: usize, _: &Head, _: Place, _: &mut Outbox<'_>) {}

    fn waits_for(&self) -> u64 {
        0
    }
}
