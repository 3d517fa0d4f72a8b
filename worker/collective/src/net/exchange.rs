//! What moves in one collective between nodes, whatever moves it.

use super::{
    connection::{Connection, Outgoing, Payload, Place},
    head::{Head, Kind},
};
use crate::op::OpWords;

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
    pub(super) connections: &'a mut [Connection],
    pub(super) exchange: u64,
    pub(super) op: OpWords,
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
        let head = Head { kind, partial, exchange, op, first: first as u64, bytes, check: 0 };
        let connection = self.connections.iter_mut().find(|connection| connection.rank == to);
        let connection = connection.unwrap_or_else(|| panic!("no connection to rank {to}"));
        connection.outgoing.push_back(Outgoing::new(head, payload));
    }
}

/// For messages that carry no numbers.
pub(super) struct NoNumbers;

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
