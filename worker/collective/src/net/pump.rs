//! One connection's messages, a piece at a time: as much as can be read or written without waiting.

use std::{
    io,
    time::{Duration, Instant},
};

use super::{
    connection::{Connection, Incoming, Outgoing, Payload, Place},
    exchange::Exchange,
    head::{Head, Kind, NOTE_BYTES_CAP},
    mesh::{EXCHANGES, MeshError},
};
use crate::{op::OpWords, verdict::Verdict};

pub(super) enum Advance {
    /// Nothing more has come, or what came belongs to a later exchange.
    Blocked,
    Moved,
    Complete(Head, Place),
}

/// Reads one piece.
pub(super) fn advance<E: Exchange>(
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
                connection.channel.links().carry(&mut into[*filled..*filled + read]);
                *filled += read;
            }
            if *filled < wanted {
                return Ok(Advance::Moved);
            }
            let payload = match place {
                Place::Bytes(bytes) => &bytes[..],
                Place::Buffer(buffer) => buffer.bytes(),
                Place::Arena(numbers) => exchange.arena_mut(numbers.clone()),
            };
            if crc32fast::hash(&payload[..wanted]) != head.check {
                let detail = "a message that was changed on its way (its checksum differs)";
                return Err(MeshError::Garbage { rank, detail: detail.to_owned() });
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
            let until = (head.pause() != Duration::ZERO).then(|| Instant::now() + head.pause());
            if head.first == 0 {
                connection.paused_until = until;
            } else if sequence(head.exchange) == sequence(number) {
                (connection.blocked_on, connection.blocked_until) = (head.first, until);
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
pub(super) fn write_all_it_takes<E: Exchange>(
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
        if !outgoing.has_check {
            outgoing.head.check = crc32fast::hash(payload);
            outgoing.has_check = true;
        }
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
pub(super) fn read_away(connection: &mut Connection) {
    let mut nowhere = [0; 4096];
    while matches!(connection.channel.read(&mut nowhere), Ok(1..)) {}
}
