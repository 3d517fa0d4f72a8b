//! The numbers of a collective on their way between nodes, piece by piece: while one piece travels,
//! the one before is added up.

use std::ops::Range;

use lockstep_shm::{Buffer, Combine, Found, Lease, NodeArenas, Reduce, Source, Span, SumOp, Term};

use super::{
    Moves,
    connection::{Payload, Place},
    exchange::{Exchange, Outbox},
    head::{Head, Kind},
    mesh::{Call, Mesh, MeshError},
};
use crate::{Topology, control::Control, split::Split};

/// Numbers travel in pieces of so many bytes: small enough to be added up while they are in the
/// second-level cache, large enough that a piece costs no more than a few system calls.
const PIECE_BYTES: usize = 256 << 10;

/// Where the numbers of a collective are, and how they become one.
#[derive(Debug)]
pub(crate) struct Numbers<'a> {
    pub(crate) arenas: &'a mut NodeArenas,
    pub(crate) lease: &'a Lease,
    pub(crate) span: Span,
    pub(crate) combine: Combine,
    pub(crate) divisor: Option<usize>,
}

/// One rank's part in moving them.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    numbers: Numbers<'a>,
    moves: Moves,
    split: &'a Split,
    topology: &'a Topology,
    node: usize,
    /// Of each piece that is reduced here: what came of it, in the order of the program's terms.
    pieces: Vec<Vec<Option<Buffer>>>,
    /// Of each entry of `moves.take`: what is still to come.
    to_take: Vec<Range<usize>>,
    /// Memory to be used again.
    spare: Vec<Buffer>,
    found: Found,
    found_ranks: u64,
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(
        numbers: Numbers<'a>,
        moves: Moves,
        split: &'a Split,
        topology: &'a Topology,
        rank: usize,
    ) -> Self {
        let node = topology.node_of(rank);
        let to_take = moves.take.iter().map(|(_, part)| part.clone()).collect();
        let mut transfer = Self {
            numbers,
            moves,
            split,
            topology,
            node,
            pieces: Vec::new(),
            to_take,
            spare: Vec::new(),
            found: Found::default(),
            found_ranks: 0,
        };
        let terms = transfer.split.staged[node].len();
        let pieces = transfer.cut(transfer.moves.reduce.clone()).count();
        transfer.pieces = (0..pieces).map(|_| vec![None; terms]).collect();
        transfer
    }

    /// Bit r: something will come from rank r.
    pub(crate) fn expects(&self) -> u64 {
        self.waits_for()
    }

    /// Moves everything.
    pub(crate) fn run(
        &mut self,
        mesh: &mut Mesh,
        call: Call,
        control: &Control,
    ) -> Result<(), MeshError> {
        mesh.run(call, self, Self::begin, control)
    }

    /// Queues everything that waits for nobody.
    fn begin(&mut self, outbox: &mut Outbox<'_>) {
        for (to, part) in self.moves.give.clone() {
            // What is reduced here, too, may have its result before it has left.
            let is_kept = part == self.moves.reduce;
            for piece in self.cut(part) {
                self.give(to, &piece, is_kept, outbox);
            }
        }
        if self.moves.reduce.is_empty() {
            for (to, part) in self.moves.tell.clone() {
                for piece in self.cut(part) {
                    self.tell(to, piece, outbox);
                }
            }
        } else if self.split.staged[self.node].is_empty() {
            (0..self.pieces.len()).for_each(|piece| self.reduce(piece, outbox));
        }
    }

    /// What was found in the numbers reduced here, and whose they were.
    pub(crate) fn found(self) -> (Found, u64) {
        (self.found, self.found_ranks)
    }

    fn give(&mut self, to: usize, piece: &Range<usize>, is_kept: bool, outbox: &mut Outbox<'_>) {
        let own = self.numbers.arenas.own_rank();
        let split = self.split;
        for (partial, program) in split.partials[self.node].iter().enumerate() {
            let numbers = piece.clone();
            let payload = match program[..] {
                _ if is_kept => Payload::Buffer(self.add_up(partial, numbers)),
                // Straight from the arena to the network.
                [SumOp::Push(Term::Arena(Source { rank, slot }))] if rank == own => {
                    Payload::Arena { slot, numbers }
                }
                _ => Payload::Partial { partial, numbers },
            };
            let partial = u16::try_from(partial).expect("a node has far fewer partial sums");
            let bytes = self.bytes(piece);
            outbox.send(to, Kind::Part, (partial, piece.start), (payload, bytes));
        }
    }

    fn tell(&self, to: usize, piece: Range<usize>, outbox: &mut Outbox<'_>) {
        let (first, bytes) = (piece.start, self.bytes(&piece));
        let payload = Payload::Arena { slot: 0, numbers: piece };
        outbox.send(to, Kind::Result, (0, first), (payload, bytes));
    }

    /// Reduces one piece, whose terms are all there, and tells the others.
    fn reduce(&mut self, piece: usize, outbox: &mut Outbox<'_>) {
        let Some(part) = self.cut(self.moves.reduce.clone()).nth(piece) else { return };
        let buffers: Vec<Buffer> = self.pieces[piece].drain(..).flatten().collect();
        let staged: Vec<&[u8]> = buffers.iter().map(Buffer::bytes).collect();
        let Numbers { arenas, lease, span, combine, divisor } = &mut self.numbers;
        let program = &self.split.programs[self.node];
        let (span, combine, divisor) = (*span, *combine, *divisor);
        let reduce =
            Reduce { span, part: part.clone(), program, staged: &staged, combine, divisor };
        let found = arenas.reduce(lease, &reduce);
        self.note(found);
        self.spare.extend(buffers);
        for (to, _) in self.moves.tell.clone() {
            self.tell(to, part.clone(), outbox);
        }
    }

    fn note(&mut self, mut found: Found) {
        self.found_ranks |= found.ranks << self.topology.leader(self.node);
        for staged in found.staged.drain(..) {
            let (node, partial) = self.split.staged[self.node][staged];
            // Who added up more than one rank's has seen whose it was.
            if let [SumOp::Push(Term::Arena(source))] = self.split.partials[node][partial][..] {
                self.found_ranks |= 1 << (self.topology.leader(node) + source.rank);
            }
        }
        self.found.merge(found);
    }

    /// A part in pieces.
    fn cut(&self, part: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let each = self.piece_len();
        let end = part.end;
        part.step_by(each).map(move |start| start..end.min(start + each))
    }

    fn piece_len(&self) -> usize {
        PIECE_BYTES / self.numbers.span.dtype.bytes()
    }

    fn bytes(&self, numbers: &Range<usize>) -> usize {
        numbers.len() * self.numbers.span.dtype.bytes()
    }

    fn buffer(&mut self, bytes: usize) -> Buffer {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(bytes);
        buffer
    }

    /// Which piece and which term of it a message brings.
    fn expected_part(&self, from: usize, head: &Head) -> Option<(usize, usize)> {
        let Moves { reduce, from: sources, .. } = &self.moves;
        let node = self.topology.node_of(from);
        let first = usize::try_from(head.first).ok()?;
        let ahead = first.checked_sub(reduce.start)?;
        let piece = ahead / self.piece_len();
        let numbers = first..reduce.end.min(first.checked_add(self.piece_len())?);
        let key = (node, usize::from(head.partial));
        let term = self.split.staged[self.node].iter().position(|staged| *staged == key)?;
        let is_expected = sources.get(node) == Some(&from)
            && ahead.is_multiple_of(self.piece_len())
            && first < reduce.end
            && self.bytes(&numbers) == head.bytes as usize
            && self.pieces.get(piece)?.get(term)?.is_none();
        is_expected.then_some((piece, term))
    }

    /// The numbers that a result brings: the next ones of those that its sender has.
    fn expected_result(&self, from: usize, head: &Head) -> Option<(usize, Range<usize>)> {
        let index = self.moves.take.iter().zip(&self.to_take).position(|((source, _), left)| {
            *source == from && !left.is_empty() && left.start as u64 == head.first
        })?;
        let left = &self.to_take[index];
        let piece = left.start..left.end.min(left.start + self.piece_len());
        (self.bytes(&piece) == head.bytes as usize).then_some((index, piece))
    }
}

impl Exchange for Transfer<'_> {
    fn place(&mut self, from: usize, head: &Head) -> Result<Place, String> {
        let place = match head.kind {
            Kind::Part => self
                .expected_part(from, head)
                .map(|_| Place::Buffer(self.buffer(head.bytes as usize))),
            Kind::Result => self.expected_result(from, head).map(|(_, piece)| Place::Arena(piece)),
            Kind::Note | Kind::Abort | Kind::Waiting => None,
        };
        place.ok_or_else(|| {
            let Head { kind, partial, first, bytes, .. } = head;
            format!("{bytes} bytes of kind {kind:?} from number {first} on (partial sum {partial})")
        })
    }

    fn arena_mut(&mut self, numbers: Range<usize>) -> &mut [u8] {
        let Numbers { arenas, lease, span, .. } = &mut self.numbers;
        arenas.bytes_mut(lease, *span, numbers)
    }

    fn arena(&self, slot: usize, numbers: Range<usize>) -> &[u8] {
        let Numbers { arenas, lease, span, .. } = &self.numbers;
        arenas.bytes(lease, slot, *span, numbers)
    }

    fn add_up(&mut self, partial: usize, numbers: Range<usize>) -> Buffer {
        let mut buffer = self.buffer(self.bytes(&numbers));
        let Numbers { arenas, lease, span, combine, .. } = &mut self.numbers;
        let program = &self.split.partials[self.node][partial];
        let (span, combine) = (*span, *combine);
        let reduce = Reduce { span, part: numbers, program, staged: &[], combine, divisor: None };
        let found = arenas.partial(lease, &reduce, buffer.bytes_mut());
        self.note(found);
        buffer
    }

    fn reuse(&mut self, buffer: Buffer) {
        self.spare.push(buffer);
    }

    fn arrived(&mut self, from: usize, head: &Head, place: Place, outbox: &mut Outbox<'_>) {
        match place {
            Place::Buffer(buffer) => {
                let Some((piece, term)) = self.expected_part(from, head) else { return };
                self.pieces[piece][term] = Some(buffer);
                if self.pieces[piece].iter().all(Option::is_some) {
                    self.reduce(piece, outbox);
                }
            }
            Place::Arena(numbers) => {
                if let Some((index, piece)) = self.expected_result(from, head) {
                    self.to_take[index].start = piece.end;
                }
                let Numbers { arenas, lease, span, .. } = &mut self.numbers;
                arenas.spread(lease, *span, numbers);
            }
            Place::Bytes(_) => {}
        }
    }

    fn waits_for(&self) -> u64 {
        let mut ranks = 0;
        for piece in &self.pieces {
            for (term, (node, _)) in piece.iter().zip(&self.split.staged[self.node]) {
                if term.is_none() {
                    ranks |= 1 << self.moves.from[*node];
                }
            }
        }
        for ((from, _), left) in self.moves.take.iter().zip(&self.to_take) {
            if !left.is_empty() {
                ranks |= 1 << from;
            }
        }
        ranks
    }
}
