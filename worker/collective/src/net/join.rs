//! How the ranks of different nodes find each other: each listens on a socket that was bound for it,
//! each connects to those of lower rank, and both ends prove that they know the group's key.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snow::TransportState;

use super::{
    connection::{Channel, Connection},
    handshake::{
        HELLO_BYTES, Hello, MESSAGE_BYTES, PROOF_BYTES, STALE, STATUS_BYTES, WELCOME, handshake,
        psk,
    },
    links::Links,
    mesh::Mesh,
};
use crate::{GroupError, Topology, control::Control};

/// A caller that says nothing is hung up on after this long, so that it keeps nobody out.
const GREETING: Duration = Duration::from_secs(2);
/// Of one try to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// Callers whose greeting is awaited at once.
const MAX_CALLERS: usize = 256;
/// Of these, from one address: no single machine keeps the ranks of others out.
const MAX_CALLERS_OF_ADDRESS: usize = 64;

/// Where a rank may be reached, best first.
pub type Endpoint = Vec<SocketAddr>;

/// What a rank needs to meet ranks of other nodes.
#[derive(Debug)]
pub struct Network {
    /// Its own socket, bound and listening.
    pub listener: TcpListener,
    /// Where each rank listens, in order of rank.
    pub endpoints: Vec<Endpoint>,
    /// What the group's ranks know and nobody else.
    pub key: Vec<u8>,
    /// The group's generation: ranks of another one are not let in.
    pub generation: u64,
    /// Whether everything between nodes is encrypted. It is authenticated at the beginning either way.
    pub encrypt: bool,
    /// What is to break its links on purpose, once they are there.
    pub links: Links,
}

/// Connects `rank` to all its neighbours. `lane`: in which of several groups. It ends early when the own node gives up.
pub(crate) fn join(
    rank: usize,
    lane: u8,
    topology: &Topology,
    (network, control): (&Network, &Control),
    (started, deadline): (Instant, Instant),
) -> Result<Mesh, GroupError> {
    let neighbours = topology.neighbours(rank);
    let (lower, higher): (Vec<usize>, Vec<usize>) =
        neighbours.iter().partition(|other| **other < rank);
    let own = Own { rank, lane, network, control, psk: psk(network), deadline };
    let (accepted, called) = thread::scope(|scope| {
        let accepting = scope.spawn(|| own.accept_all(&higher));
        let called: Result<Vec<_>, GroupError> =
            lower.iter().map(|other| own.call(*other)).collect();
        (accepting.join(), called)
    });
    let mut connections = called?;
    let accepted = accepted
        .map_err(|_| GroupError::io("accepting ranks", io::Error::other("a thread panicked")))??;
    connections.extend(accepted);
    let has_come = |other: &usize| connections.iter().any(|it| it.rank == *other);
    let missing: Vec<usize> = neighbours.into_iter().filter(|it| !has_come(it)).collect();
    if !missing.is_empty() {
        return Err(GroupError::FormationTimeout { missing, waited: started.elapsed() });
    }
    connections.sort_by_key(|connection| connection.rank);
    Ok(Mesh::new(connections))
}

struct Own<'a> {
    rank: usize,
    lane: u8,
    network: &'a Network,
    control: &'a Control,
    psk: [u8; 32],
    deadline: Instant,
}

impl Own<'_> {
    /// Connects to a rank of lower number; tries until the deadline.
    fn call(&self, other: usize) -> Result<Connection, GroupError> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        loop {
            for address in &self.network.endpoints[other] {
                match self.try_call(other, *address) {
                    Ok(connection) => return Ok(connection),
                    Err(Refusal::Stale { theirs }) => {
                        let ours = self.network.generation;
                        return Err(GroupError::StaleGeneration { rank: other, ours, theirs });
                    }
                    Err(Refusal::Io(error)) => {
                        tracing::debug!(rank = other, %address, %error, "cannot reach a rank yet");
                        last = io::Error::new(error.kind(), format!("{address}: {error}"));
                    }
                }
            }
            if self.left() <= PAUSE {
                return Err(GroupError::Unreachable { rank: other, reason: last.to_string() });
            }
            thread::sleep(PAUSE);
        }
    }

    fn try_call(&self, other: usize, address: SocketAddr) -> Result<Connection, Refusal> {
        let limit = self.left().min(CONNECT).max(PAUSE);
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        prepare(&stream, limit)?;
        let Network { generation, encrypt, .. } = *self.network;
        let (lane, from) = (self.lane, self.rank);
        let hello = Hello { generation, lane, from, to: other, encrypt }.encode();
        let mut state =
            handshake(&self.psk, &hello)?.build_initiator().map_err(io::Error::other)?;
        let mut message = [0; MESSAGE_BYTES];
        state.write_message(&[], &mut message).map_err(io::Error::other)?;
        stream.write_all(&hello)?;
        stream.write_all(&message)?;
        let mut status = [0; STATUS_BYTES];
        stream.read_exact(&mut status)?;
        let theirs = u64::from_le_bytes(std::array::from_fn(|index| status[8 + index]));
        match status[0] {
            WELCOME => {}
            STALE => return Err(Refusal::Stale { theirs }),
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
        stream.read_exact(&mut message)?;
        state.read_message(&message, &mut []).map_err(io::Error::other)?;
        let mut state = state.into_transport_mode().map_err(io::Error::other)?;
        // Proves that this end lives: who only plays back what it has heard cannot say it.
        let mut proof = [0; PROOF_BYTES];
        state.write_message(&[], &mut proof).map_err(io::Error::other)?;
        stream.write_all(&proof)?;
        Ok(Connection::new(other, self.channel(stream, state)?))
    }

    /// Takes in those of higher number until all are there or the deadline passes.
    fn accept_all(&self, higher: &[usize]) -> Result<Vec<Connection>, GroupError> {
        let fail = |error| GroupError::io("accepting ranks", error);
        let listener = &self.network.listener;
        listener.set_nonblocking(true).map_err(fail)?;
        let come: Mutex<Vec<Connection>> = Mutex::default();
        let lock = || come.lock().unwrap_or_else(PoisonError::into_inner);
        thread::scope(|scope| {
            let mut callers: Vec<Caller<'_>> = Vec::new();
            while lock().len() < higher.len() && !self.left().is_zero() {
                callers.retain(|caller| !caller.greeting.is_finished());
                let has_room = |address: IpAddr| {
                    let same = callers.iter().filter(|caller| caller.address == address).count();
                    same < MAX_CALLERS_OF_ADDRESS && callers.len() < MAX_CALLERS
                };
                match listener.accept() {
                    Ok((stream, address)) if has_room(address.ip()) => {
                        let line = Arc::new(Mutex::new(stream.try_clone().ok()));
                        let own_line = Arc::clone(&line);
                        let greeting = scope.spawn(move || match self.greet(stream, higher) {
                            Ok(connection) => {
                                let mut come = lock();
                                if come.iter().all(|it| it.rank != connection.rank) {
                                    // Before it is seen to have come: nobody hangs up on it any more.
                                    own_line.lock().unwrap_or_else(PoisonError::into_inner).take();
                                    come.push(connection);
                                }
                            }
                            // Whoever it is, it does not keep the group from forming.
                            Err(error) => {
                                tracing::warn!(%address, %error, "a caller is not let in");
                            }
                        });
                        callers.push(Caller { address: address.ip(), line, greeting });
                    }
                    // Hung up on.
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        // Of a caller that is gone already, or for want of descriptors: that passes.
                        if error.kind() != io::ErrorKind::WouldBlock {
                            tracing::warn!(%error, "a caller cannot be answered");
                        }
                        // A greeting that ends meanwhile is seen after the pause.
                        wait_readable(listener, self.left().min(PAUSE));
                    }
                }
            }
            // Nobody is waited for who still has not said who it is.
            for caller in &callers {
                let mut line = caller.line.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(line) = line.take() {
                    // It is over either way.
                    line.shutdown(Shutdown::Both).ok();
                }
            }
        });
        Ok(come.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers a caller, if it is one of ours.
    fn greet(&self, mut stream: TcpStream, higher: &[usize]) -> io::Result<Connection> {
        stream.set_nonblocking(false)?;
        let until = Instant::now() + self.left().min(GREETING).max(PAUSE);
        prepare(&stream, GREETING)?;
        let mut hello = [0; HELLO_BYTES];
        read_by(&mut stream, &mut hello, until)?;
        let no = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason);
        let said = Hello::decode(&hello).ok_or_else(|| no("it is no rank"))?;
        let mut status = [0; STATUS_BYTES];
        status[8..].copy_from_slice(&self.network.generation.to_le_bytes());
        if said.generation != self.network.generation {
            status[0] = STALE;
            stream.write_all(&status)?;
            return Err(no("it is of another generation"));
        }
        if said.lane != self.lane {
            return Err(no("it is for another group of this rank's"));
        }
        if said.to != self.rank || !higher.contains(&said.from) {
            return Err(no("it is not expected here"));
        }
        if said.encrypt != self.network.encrypt {
            return Err(no("only one end wants encryption"));
        }
        let mut state =
            handshake(&self.psk, &hello)?.build_responder().map_err(io::Error::other)?;
        let mut message = [0; MESSAGE_BYTES];
        read_by(&mut stream, &mut message, until)?;
        state
            .read_message(&message, &mut [])
            .map_err(|_| no("it does not know the group's key"))?;
        state.write_message(&[], &mut message).map_err(io::Error::other)?;
        status[0] = WELCOME;
        stream.write_all(&status)?;
        stream.write_all(&message)?;
        let mut state = state.into_transport_mode().map_err(io::Error::other)?;
        let mut proof = [0; PROOF_BYTES];
        read_by(&mut stream, &mut proof, until)?;
        state.read_message(&proof, &mut []).map_err(|_| no("it only repeats what it has heard"))?;
        Ok(Connection::new(said.from, self.channel(stream, state)?))
    }

    fn channel(&self, stream: TcpStream, state: TransportState) -> io::Result<Channel> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        let links = self.network.links.clone();
        Channel::new(stream, self.network.encrypt.then_some(state), links)
    }

    /// Nothing, once the group cannot form any more.
    fn left(&self) -> Duration {
        if self.control.is_given_up() {
            return Duration::ZERO;
        }
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// Somebody who has called and not yet said who it is.
struct Caller<'scope> {
    address: IpAddr,
    /// To hang up, as long as it is not one of ours.
    line: Arc<Mutex<Option<TcpStream>>>,
    greeting: thread::ScopedJoinHandle<'scope, ()>,
}

/// Why a call was not answered.
enum Refusal {
    Stale { theirs: u64 },
    Io(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Small messages leave at once, and nothing is awaited for longer than `limit`.
fn prepare(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))
}

/// Reads all of it before the deadline, however it trickles in.
fn read_by(stream: &mut TcpStream, into: &mut [u8], until: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut into[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_readable(listener: &TcpListener, limit: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    let fd = PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN);
    // Interrupted or refused: the caller looks again, and its deadline stands.
    poll(&mut [fd], Some(&timeout)).ok();
}
