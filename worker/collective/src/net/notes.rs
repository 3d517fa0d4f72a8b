//! A few bytes that the leaders of all nodes tell each other.

use std::ops::Range;

use lockstep_shm::Buffer;

use super::{
    connection::{Payload, Place},
    exchange::{Exchange, Outbox},
    head::{Head, Kind},
    mesh::{Call, Mesh, MeshError},
    pump::note_place,
};
use crate::{Topology, control::Control};

/// Gives every leader the note of each, by node.
pub(crate) fn exchange_notes(
    mesh: &mut Mesh,
    topology: &Topology,
    (own, note): (usize, Vec<u8>),
    call: Call,
    control: &Control,
) -> Result<Vec<Vec<u8>>, MeshError> {
    let mut notes = Notes { topology, own, notes: vec![None; topology.node_count()] };
    let begin = |notes: &mut Notes<'_>, outbox: &mut Outbox<'_>| {
        for node in (0..topology.node_count()).filter(|node| *node != own) {
            let payload = (Payload::Bytes(note.clone()), note.len());
            outbox.send(topology.leader(node), Kind::Note, (0, 0), payload);
        }
        notes.notes[own] = Some(note);
    };
    mesh.run(call, &mut notes, begin, control)?;
    Ok(notes.notes.into_iter().flatten().collect())
}

struct Notes<'a> {
    topology: &'a Topology,
    own: usize,
    notes: Vec<Option<Vec<u8>>>,
}

impl Exchange for Notes<'_> {
    fn place(&mut self, from: usize, head: &Head) -> Result<Place, String> {
        let node = self.topology.node_of(from);
        let is_expected = head.kind == Kind::Note
            && self.topology.leader(node) == from
            && self.notes[node].is_none();
        if !is_expected {
            return Err(format!("a message of kind {:?} in place of a note", head.kind));
        }
        note_place(head)
    }

    fn arena_mut(&mut self, _: Range<usize>) -> &mut [u8] {
        &mut []
    }

    fn arena(&self, _: usize, _: Range<usize>) -> &[u8] {
        &[]
    }

    fn add_up(&mut self, _: usize, _: Range<usize>) -> Buffer {
        Buffer::default()
    }

    fn reuse(&mut self, _: Buffer) {}

    fn arrived(&mut self, from: usize, _: &Head, place: Place, _: &mut Outbox<'_>) {
        if let Place::Bytes(note) = place {
            self.notes[self.topology.node_of(from)] = Some(note);
        }
    }

    fn waits_for(&self) -> u64 {
        let missing = (0..self.notes.len()).filter(|node| self.notes[*node].is_none());
        let ranks = missing.filter(|node| *node != self.own);
        ranks.fold(0, |all, node| all | 1 << self.topology.leader(node))
    }
}
