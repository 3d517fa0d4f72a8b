//! Why a job waits, as people read it.

use std::fmt;

use lockstep_api::{DeviceKind, SlotSpec, Transport};

use super::{ClosedSlots, Request};

/// Why a job waits. `Display` is the sentence for people.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// No node is there.
    NoNode,
    /// No node has such a slot.
    NoSuchSlot {
        /// What was asked for.
        slot: SlotSpec,
    },
    /// All nodes together have too few such slots.
    TooFewTogether {
        /// What was asked for.
        request: Request,
        /// What they have.
        slots: u32,
    },
    /// No node has enough such slots, nor have all together.
    TooFewSlots {
        /// What was asked for.
        request: Request,
        /// The largest node.
        node_name: String,
        /// What it has.
        slots: u32,
    },
    /// Nodes together have enough, none alone, and the job's transport keeps it on one.
    SpansNodes {
        /// What was asked for.
        request: Request,
        /// Each node and its slots.
        nodes: Vec<(String, u32)>,
    },
    /// It fits once slots are free.
    NotFree {
        /// What was asked for.
        request: Request,
        /// How many are free now: on all nodes, or, if it stays on one, the most that a node large enough has.
        free: u32,
    },
    /// Slots that would suit it are on nodes that take no new work.
    Closed {
        /// Why it waits as it is.
        otherwise: Box<Reason>,
        /// Those.
        slots: Vec<ClosedSlots>,
    },
    /// It gets slots of jobs of lower priority, once these have left them.
    Preempting {
        /// Why it waits as it is.
        otherwise: Box<Reason>,
        /// How many.
        slots: u32,
    },
}

impl Reason {
    /// Whether it will fit once slots are free.
    pub fn is_for_free_slots(&self) -> bool {
        match self {
            Self::NotFree { .. } => true,
            Self::Closed { otherwise, .. } | Self::Preempting { otherwise, .. } => {
                otherwise.is_for_free_slots()
            }
            Self::NoNode
            | Self::NoSuchSlot { .. }
            | Self::TooFewTogether { .. }
            | Self::TooFewSlots { .. }
            | Self::SpansNodes { .. } => false,
        }
    }
}

/// How many nodes a sentence names.
const NODES_NAMED: usize = 4;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => f.write_str("no node is connected"),
            Self::NoSuchSlot { slot } => write!(f, "no node offers a slot of {}", Kind(slot)),
            Self::TooFewTogether { request, slots } => write!(
                f,
                "all nodes together do not offer {} of {}: they have {slots}",
                Count(request.ranks.min(), "slot"),
                Kind(&request.slot),
            ),
            Self::TooFewSlots { request, node_name, slots } => write!(
                f,
                "no node offers {} of {}: the largest, {node_name}, has {slots}",
                Count(request.ranks.min(), "slot"),
                Kind(&request.slot),
            ),
            Self::SpansNodes { request, nodes } => {
                write!(
                    f,
                    "no node offers {} of {}: they would span nodes (",
                    Count(request.ranks.min(), "slot"),
                    Kind(&request.slot)
                )?;
                for (i, (name, slots)) in nodes.iter().take(NODES_NAMED).enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{name} has {slots}")?;
                }
                if NODES_NAMED < nodes.len() {
                    write!(f, ", and {} more", nodes.len() - NODES_NAMED)?;
                }
                f.write_str("), and `ddp.transport = \"shm\"` keeps it on one")
            }
            Self::NotFree { request, free } => write!(
                f,
                "waits for {} of {}{}: {free} {} free",
                Count(request.ranks.min(), "free slot"),
                Kind(&request.slot),
                match request.transport {
                    Transport::Shm => " on one node",
                    Transport::Auto | Transport::Tcp => "",
                },
                if *free == 1 { "is" } else { "are" },
            ),
            Self::Closed { otherwise, slots } => {
                write!(f, "{otherwise}")?;
                for slots in slots.iter().take(NODES_NAMED) {
                    write!(f, "; {slots}")?;
                }
                if NODES_NAMED < slots.len() {
                    write!(f, "; so are slots of {} more nodes", slots.len() - NODES_NAMED)?;
                }
                Ok(())
            }
            Self::Preempting { otherwise, slots } => {
                let are = if *slots == 1 { "is" } else { "are" };
                let slots = Count(*slots, "slot");
                write!(f, "{otherwise}; {slots} {are} being given up by preempted jobs")
            }
        }
    }
}

/// `2 slots`
struct Count(u32, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// `1 cpu core and 512 MiB`
struct Kind<'a>(&'a SlotSpec);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlotSpec { device, cores, memory_mib } = self.0;
        match device {
            DeviceKind::Cpu => {
                write!(f, "{} and {memory_mib} MiB", Count(*cores, "cpu core"))
            }
            DeviceKind::Cuda => {
                write!(f, "1 cuda device, {} and {memory_mib} MiB", Count(*cores, "core"))
            }
        }
    }
}
