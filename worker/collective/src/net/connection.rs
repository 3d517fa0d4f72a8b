//! One connection to a rank of another node: what waits to be sent, and how far the message that is
//! coming in has come.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, Read as _, Write as _},
    net::TcpStream,
    ops::Range,
    time::Instant,
};

use lockstep_shm::Buffer;
use snow::TransportState;

use super::{head::Head, links::Links};

/// The largest record of the Noise protocol, and what its seal takes of it.
const RECORD_BYTES: usize = 65535;
const SEAL_BYTES: usize = 16;
/// Before each record: its length.
const LENGTH_BYTES: usize = 2;

/// What a message carries after its head.
#[derive(Debug)]
pub(super) enum Payload {
    Nothing,
    Bytes(Vec<u8>),
    /// Numbers of a collective in an own arena.
    Arena {
        slot: usize,
        numbers: Range<usize>,
    },
    /// Numbers of a collective that have yet to be added up.
    Partial {
        partial: usize,
        numbers: Range<usize>,
    },
    /// The same, added up.
    Buffer(Buffer),
}

/// A message to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) head: Head,
    pub(super) payload: Payload,
    /// Whether the head has the payload's checksum.
    pub(super) has_check: bool,
}

impl Outgoing {
    pub(super) fn new(head: Head, payload: Payload) -> Self {
        Self { head, payload, has_check: false }
    }
}

/// Where the payload of a message goes.
#[derive(Debug)]
pub(super) enum Place {
    Bytes(Vec<u8>),
    /// Numbers of a collective in own arena 0.
    Arena(Range<usize>),
    Buffer(Buffer),
}

/// How far the message that is coming in has come.
#[derive(Debug)]
pub(super) enum Incoming {
    Head {
        bytes: [u8; Head::BYTES],
        filled: usize,
    },
    /// The head is there; where the payload goes is not decided.
    Ready(Head),
    Payload {
        head: Head,
        place: Place,
        filled: usize,
    },
}

impl Incoming {
    pub(super) fn nothing() -> Self {
        Self::Head { bytes: [0; Head::BYTES], filled: 0 }
    }
}

/// A connection that has been authenticated. Never blocks.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) rank: usize,
    pub(super) channel: Channel,
    pub(super) outgoing: VecDeque<Outgoing>,
    /// Bytes of the first outgoing message that have left.
    pub(super) sent: usize,
    pub(super) incoming: Incoming,
    /// Bit r: the other end said that it waits for rank r itself.
    pub(super) blocked_on: u64,
    /// Until when the other end is busy, as it has said.
    pub(super) paused_until: Option<Instant>,
    /// Until when those are busy that it waits for.
    pub(super) blocked_until: Option<Instant>,
    /// The other end has closed. That is a fault only when something is still to come from it.
    pub(super) is_closed: bool,
}

impl Connection {
    pub(super) fn new(rank: usize, channel: Channel) -> Self {
        let (outgoing, incoming) = (VecDeque::new(), Incoming::nothing());
        Self {
            rank,
            channel,
            outgoing,
            sent: 0,
            incoming,
            blocked_on: 0,
            paused_until: None,
            blocked_until: None,
            is_closed: false,
        }
    }

    /// Until when its silence means nothing.
    pub(super) fn excused_until(&self) -> Option<Instant> {
        self.paused_until.max(self.blocked_until.filter(|_| self.blocked_on != 0))
    }

    /// Whether everything has left.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() && self.channel.is_flushed()
    }
}

/// Bytes to and from another rank, sealed or not.
#[derive(Debug)]
pub(super) struct Channel {
    stream: TcpStream,
    seal: Option<Box<Seal>>,
    links: Links,
}

/// Encryption in both directions, record by record.
struct Seal {
    state: TransportState,
    /// Sealed, not yet sent.
    sealed: Vec<u8>,
    sealed_sent: usize,
    /// Came in, not yet a whole record.
    coming: Vec<u8>,
    /// Opened, not yet taken.
    opened: Vec<u8>,
    opened_taken: usize,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

impl Channel {
    /// `state`: of a finished handshake, if everything after it is to be encrypted.
    pub(super) fn new(
        stream: TcpStream,
        state: Option<TransportState>,
        links: Links,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let seal = state.map(|state| {
            Box::new(Seal {
                state,
                sealed: Vec::new(),
                sealed_sent: 0,
                coming: Vec::new(),
                opened: Vec::new(),
                opened_taken: 0,
            })
        });
        Ok(Self { stream, seal, links })
    }

    /// Faults of this link.
    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.seal.as_ref().is_none_or(|seal| seal.sealed.len() == seal.sealed_sent)
    }

    /// Sends what it can of two pieces that follow one another.
    pub(super) fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let granted = self.granted(first.len() + second.len())?;
        let first = &first[..first.len().min(granted)];
        let second = &second[..second.len().min(granted - first.len())];
        let written = self.write_granted(first, second);
        self.links.give_back(granted - *written.as_ref().unwrap_or(&0));
        written
    }

    fn write_granted(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let Some(seal) = &mut self.seal else {
            return self.stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]);
        };
        seal.flush(&mut self.stream)?;
        let piece = if first.is_empty() { second } else { first };
        let piece = &piece[..piece.len().min(RECORD_BYTES - SEAL_BYTES)];
        seal.seal(piece)?;
        // What the socket does not take now goes first next time.
        match seal.flush(&mut self.stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(piece.len()),
        }
    }

    /// Sends what was sealed and not taken.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.seal {
            Some(seal) if seal.sealed_sent < seal.sealed.len() => {
                // A record is sent whole.
                self.links.grant(1).ok_or(io::ErrorKind::WouldBlock)?;
                seal.flush(&mut self.stream)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Takes what has come; 0 when the other end has closed.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let granted = self.granted(into.len())?;
        let into = &mut into[..granted];
        let read = match &mut self.seal {
            None => self.stream.read(into),
            Some(seal) => seal.read(&mut self.stream, into),
        };
        self.links.give_back(granted - *read.as_ref().unwrap_or(&0));
        read
    }

    fn granted(&self, wanted: usize) -> io::Result<usize> {
        self.links.grant(wanted).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

impl Seal {
    fn seal(&mut self, piece: &[u8]) -> io::Result<()> {
        let length = piece.len() + SEAL_BYTES;
        self.sealed.clear();
        self.sealed_sent = 0;
        self.sealed.resize(LENGTH_BYTES + length, 0);
        let bytes = u16::try_from(length).map_err(io::Error::other)?.to_le_bytes();
        self.sealed[..LENGTH_BYTES].copy_from_slice(&bytes);
        let written = self.state.write_message(piece, &mut self.sealed[LENGTH_BYTES..]);
        written.map(drop).map_err(io::Error::other)
    }

    fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        while self.sealed_sent < self.sealed.len() {
            match stream.write(&self.sealed[self.sealed_sent..])? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => self.sealed_sent += sent,
            }
        }
        Ok(())
    }

    fn read(&mut self, stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        while self.opened.len() == self.opened_taken {
            if !self.fill(stream)? {
                return Ok(0);
            }
        }
        let len = into.len().min(self.opened.len() - self.opened_taken);
        into[..len].copy_from_slice(&self.opened[self.opened_taken..][..len]);
        self.opened_taken += len;
        Ok(len)
    }

    /// Reads towards a whole record and opens it. False when the other end has closed.
    fn fill(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        let wanted = match self.coming.first_chunk() {
            Some(length) => LENGTH_BYTES + usize::from(u16::from_le_bytes(*length)),
            None => LENGTH_BYTES,
        };
        if self.coming.len() < wanted {
            let have = self.coming.len();
            self.coming.resize(wanted, 0);
            let read = stream.read(&mut self.coming[have..]);
            self.coming.truncate(have + *read.as_ref().unwrap_or(&0));
            return Ok(0 < read?);
        }
        if wanted == LENGTH_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an empty record"));
        }
        self.opened.resize(RECORD_BYTES, 0);
        let opened = self.state.read_message(&self.coming[LENGTH_BYTES..], &mut self.opened);
        let opened = opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.opened.truncate(opened);
        self.opened_taken = 0;
        self.coming.clear();
        Ok(true)
    }
}
