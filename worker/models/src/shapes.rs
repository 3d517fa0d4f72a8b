//! The forward pass on shapes alone, and what memory the tape would need for it.
//!
//! The tape keeps every value of forward and what operations save, but for the inside of segments. Backward goes
//! from the last value to the first: a value's gradient comes with its first contribution and goes, with the value
//! itself, when it was sent on; a segment's inside comes back when backward reaches its end. The most that is there at
//! once is counted, operation by operation. Gradients of parameters lie in the caller's arena and are counted there;
//! scratch within operations (the rearranged patches of a convolution) is not counted.

use lockstep_tensor::{Layout, Meta, Op, OpError};

use crate::{
    builder::{Buffer, Running, Weight},
    graph::Graph,
};

/// A value: a parameter, or the place among those that were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape(usize);

/// Shapes in place of numbers.
#[derive(Debug)]
pub(crate) struct Shapes<'a> {
    layout: &'a Layout,
    buffers: &'a Layout,
    /// Parameters first, in arena order.
    nodes: Vec<Node>,
    segments: Vec<std::ops::Range<usize>>,
    open: Option<usize>,
    /// Bytes that the greediest convolution takes beside the tape.
    scratch: u64,
}

#[derive(Debug)]
struct Node {
    meta: Meta,
    inputs: Vec<usize>,
    /// Bytes of its own numbers; a view has none.
    value: u64,
    saved: u64,
    prepared: u64,
    needs_grad: bool,
    has_op: bool,
    /// The place of an input that gets the gradient itself.
    heir: Option<usize>,
}

impl Node {
    fn source(meta: Meta) -> Self {
        Self {
            value: bytes(&meta),
            meta,
            inputs: Vec::new(),
            saved: 0,
            prepared: 0,
            needs_grad: false,
            has_op: false,
            heir: None,
        }
    }

    fn held(&self) -> u64 {
        self.value.saturating_add(self.saved)
    }
}

impl<'a> Shapes<'a> {
    pub(crate) fn new(layout: &'a Layout, buffers: &'a Layout) -> Self {
        let param = |param: &lockstep_tensor::Param| Node {
            value: 0,
            needs_grad: true,
            ..Node::source(Meta::f32(param.shape.clone()))
        };
        let nodes = layout.params().iter().map(param).collect();
        Self { layout, buffers, nodes, segments: Vec::new(), open: None, scratch: 0 }
    }

    pub(crate) fn input(&mut self, meta: Meta) -> Shape {
        self.push(Node::source(meta))
    }

    /// Bytes of everything that forward leaves on the tape.
    pub(crate) fn forward_bytes(&self) -> u64 {
        let kept = |place: &usize| !self.nodes[*place].has_op || !self.is_inside(*place);
        let places = (0..self.nodes.len()).filter(kept);
        places.map(|place| self.nodes[place].held()).fold(0, u64::saturating_add)
    }

    /// The most bytes that are there at once in a forward and a backward pass from `seed`, the scratch included.
    pub(crate) fn peak_bytes(&self, seed: Shape) -> u64 {
        let mut live = self.forward_bytes();
        let mut peak = live.max(self.widest_segment_forward());
        let mut has_grad = vec![false; self.nodes.len()];
        has_grad[seed.0] = true;
        live = live.saturating_add(bytes(&self.nodes[seed.0].meta));
        let mut segments = self.segments.iter().rev().peekable();
        for place in (self.layout.params().len()..self.nodes.len()).rev() {
            if let Some(segment) = segments.next_if(|segment| segment.end == place + 1) {
                live = live.saturating_add(self.inside_bytes(segment));
            }
            if !has_grad[place] {
                continue;
            }
            let node = &self.nodes[place];
            let mut handed_on = 0;
            for &input in &node.inputs {
                let is_new = self.nodes[input].needs_grad && !has_grad[input];
                if is_new && self.layout.params().len() <= input {
                    has_grad[input] = true;
                    if node.heir == Some(input) {
                        handed_on = bytes(&node.meta);
                    } else {
                        live = live.saturating_add(bytes(&self.nodes[input].meta));
                    }
                }
            }
            peak = peak.max(live.saturating_add(node.prepared));
            let kept = if place == seed.0 { 0 } else { node.held() };
            live = live.saturating_sub(kept.saturating_add(bytes(&node.meta) - handed_on));
        }
        peak.saturating_add(self.scratch)
    }

    /// The inside of a segment, which is there while it is recorded, and all that was kept before it.
    fn widest_segment_forward(&self) -> u64 {
        let before = |segment: &std::ops::Range<usize>| {
            let kept = |place: &usize| !self.nodes[*place].has_op || !self.is_inside(*place);
            let places = (0..segment.end).filter(kept);
            let kept = places.map(|place| self.nodes[place].held()).fold(0, u64::saturating_add);
            kept.saturating_add(self.inside_bytes(segment))
        };
        self.segments.iter().map(before).max().unwrap_or(0)
    }

    fn inside_bytes(&self, segment: &std::ops::Range<usize>) -> u64 {
        let inside = segment.clone().filter(|&place| place + 1 < segment.end);
        let inside = inside.filter(|&place| self.nodes[place].has_op);
        inside.map(|place| self.nodes[place].held()).fold(0, u64::saturating_add)
    }

    /// Whether a value is given up at the end of its segment.
    fn is_inside(&self, place: usize) -> bool {
        let next = self.segments.partition_point(|segment| segment.end <= place);
        let segment = self.segments.get(next);
        segment.is_some_and(|segment| segment.contains(&place) && place + 1 < segment.end)
    }

    fn push(&mut self, node: Node) -> Shape {
        self.nodes.push(node);
        Shape(self.nodes.len() - 1)
    }
}

impl Graph for Shapes<'_> {
    type Value = Shape;

    fn param(&mut self, weight: Weight) -> Shape {
        Shape(weight.id(self.layout).0)
    }

    fn buffer(&mut self, buffer: Buffer) -> Result<Shape, OpError> {
        let param = &self.buffers.params()[buffer.id(self.buffers).0];
        Ok(self.input(Meta::f32(param.shape.clone())))
    }

    fn zeros(&mut self, shape: &[usize]) -> Result<Shape, OpError> {
        Ok(self.input(Meta::f32(shape)))
    }

    fn causal(&mut self, time: usize) -> Result<Shape, OpError> {
        Ok(self.input(Meta::f32([time, time])))
    }

    fn apply(&mut self, op: Op, inputs: &[Shape]) -> Result<Shape, OpError> {
        let metas: Vec<&Meta> = inputs.iter().map(|input| &self.nodes[input.0].meta).collect();
        let meta = op.infer(&metas)?;
        let floats = |len: usize| 4 * len as u64;
        if let (Op::Conv2d(conv), [x, w, ..]) = (&op, metas.as_slice()) {
            self.scratch = self.scratch.max(floats(conv.scratch_len(x, w)));
        }
        let node = Node {
            value: if op.is_view() { 0 } else { bytes(&meta) },
            saved: floats(op.saved_len(&metas, &meta)),
            prepared: floats(op.prepared_len(&metas, &meta)),
            needs_grad: op.has_gradient() && inputs.iter().any(|it| self.nodes[it.0].needs_grad),
            inputs: inputs.iter().map(|input| input.0).collect(),
            has_op: true,
            heir: op.passes_on(&metas).map(|which| inputs[which].0),
            meta,
        };
        Ok(self.push(node))
    }

    fn meta(&self, value: Shape) -> Result<&Meta, OpError> {
        Ok(&self.nodes[value.0].meta)
    }

    fn begin_segment(&mut self) -> Result<(), OpError> {
        if self.open.replace(self.nodes.len()).is_some() {
            return Err(OpError::Segment { rule: "segments do not nest" });
        }
        Ok(())
    }

    fn end_segment(&mut self, result: Shape) -> Result<(), OpError> {
        let Some(first) = self.open.take() else {
            return Err(OpError::Segment { rule: "no segment was begun" });
        };
        if result.0 + 1 != self.nodes.len() || self.nodes[result.0].value == 0 {
            return Err(OpError::Segment {
                rule: "the result must be computed last in the segment",
            });
        }
        self.segments.push(first..self.nodes.len());
        Ok(())
    }

    fn take_statistics(&mut self, _running: &Running, _norm: Shape) -> Result<(), OpError> {
        Ok(())
    }
}

/// Of f32 or i64.
fn bytes(meta: &Meta) -> u64 {
    let size = if meta.dtype.is_float() { 4 } else { 8 };
    (meta.len() as u64).saturating_mul(size)
}
