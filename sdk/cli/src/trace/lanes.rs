//! Slices dealt to lanes in which they lie side by side or within each other: what a viewer draws as one thread.

use super::{Slice, Thread};

/// A slice begins or ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Edge<'a> {
    Begin(&'a Slice),
    End(&'a Slice),
}

/// Deals slices to as few lanes as their order of beginnings allows; each lane is ordered, what encloses before what it encloses.
pub(super) fn lanes(mut slices: Vec<Slice>) -> Vec<Vec<Slice>> {
    slices.sort_by_key(|slice| (slice.start_ns, std::cmp::Reverse(slice.end_ns)));
    let mut lanes: Vec<Lane> = Vec::new();
    for slice in slices {
        match lanes.iter_mut().find_map(|lane| lane.has_room(&slice).then_some(lane)) {
            Some(lane) => lane.push(slice),
            None => {
                let mut lane = Lane::default();
                lane.push(slice);
                lanes.push(lane);
            }
        }
    }
    lanes.into_iter().map(|lane| lane.slices).collect()
}

#[derive(Default)]
struct Lane {
    slices: Vec<Slice>,
    /// Ends of those that enclose whatever begins now, outermost first.
    open_ns: Vec<u64>,
}

impl Lane {
    /// Whether `slice`, which begins no earlier than those before, lies beside or within them.
    fn has_room(&mut self, slice: &Slice) -> bool {
        while self.open_ns.last().is_some_and(|end| *end <= slice.start_ns) {
            self.open_ns.pop();
        }
        self.open_ns.last().is_none_or(|end| slice.end_ns <= *end)
    }

    fn push(&mut self, slice: Slice) {
        self.open_ns.push(slice.end_ns);
        self.slices.push(slice);
    }
}

impl Thread {
    /// Beginnings and ends in order of time; at one time ends come before beginnings, but for a slice without length.
    pub(crate) fn edges(&self) -> Vec<Edge<'_>> {
        let mut edges = Vec::with_capacity(2 * self.slices.len());
        let mut open: Vec<&Slice> = Vec::new();
        for slice in &self.slices {
            while let Some(ended) = open.pop_if(|it| it.end_ns <= slice.start_ns) {
                edges.push(Edge::End(ended));
            }
            edges.push(Edge::Begin(slice));
            open.push(slice);
        }
        edges.extend(open.into_iter().rev().map(Edge::End));
        edges
    }
}
