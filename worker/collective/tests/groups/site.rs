//! What the ranks of a group need to meet, when they are threads of a test.

use std::{
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd as _, OwnedFd},
    sync::Mutex,
    time::Duration,
};

use lockstep_collective::{Interrupt, Join, Links, Network, Topology};
use lockstep_shm::create_group_memory;

/// What the ranks of a group need to meet, each once.
pub(crate) struct Site {
    pub(crate) topology: Topology,
    memories: Vec<OwnedFd>,
    listeners: Mutex<Vec<Option<TcpListener>>>,
    pub(crate) endpoints: Vec<Vec<SocketAddr>>,
    pub(crate) encrypt: bool,
    /// Of each rank.
    pub(crate) links: Vec<Links>,
}

impl Site {
    /// Nodes of so many ranks each.
    pub(crate) fn new(sizes: &[usize]) -> Self {
        let mut next = 0;
        let node = |size: &usize| {
            next += size;
            next - size..next
        };
        let topology = Topology::new(sizes.iter().map(node).collect()).unwrap();
        let listeners: Vec<TcpListener> =
            (0..topology.world()).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        Self {
            memories: sizes.iter().map(|_| create_group_memory().unwrap()).collect(),
            endpoints: listeners.iter().map(|it| vec![it.local_addr().unwrap()]).collect(),
            listeners: Mutex::new(listeners.into_iter().map(Some).collect()),
            links: (0..topology.world()).map(|_| Links::default()).collect(),
            topology,
            encrypt: false,
        }
    }

    pub(crate) fn network(&self, rank: usize, generation: u64) -> Network {
        let listener = self.listeners.lock().unwrap()[rank].take();
        Network {
            listener: listener.unwrap_or_else(|| TcpListener::bind("127.0.0.1:0").unwrap()),
            endpoints: self.endpoints.clone(),
            key: b"a key".to_vec(),
            generation,
            encrypt: self.encrypt,
            links: self.links[rank].clone(),
        }
    }

    /// What a rank brings, with a network of its own making.
    pub(crate) fn join_over(&self, rank: usize, timeout: Duration, network: Network) -> Join<'_> {
        let topology = self.topology.clone();
        let memory = self.memories[topology.node_of(rank)].as_fd();
        let network = (1 < topology.node_count()).then_some(network);
        let (threads_per_rank, record) = (2, None);
        let (formation, interrupt) = (timeout, Interrupt::default());
        Join {
            memory,
            rank,
            topology,
            network,
            timeout,
            formation,
            threads_per_rank,
            record,
            interrupt,
        }
    }

    /// What a rank brings.
    pub(crate) fn join(&self, rank: usize, timeout: Duration) -> Join<'_> {
        self.join_over(rank, timeout, self.network(rank, 1))
    }
}
