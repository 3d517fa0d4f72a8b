//! A rank's place in one group of its attempt: the first comes with its configuration, later ones from the agent.

use std::io;
use std::os::fd::OwnedFd;

use lockstep_api::{Generation, Rank, RankConfig, RankNetwork, Regroup, Step};

/// Where a rank sits in a group.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) generation: Generation,
    pub(crate) rank: Rank,
    pub(crate) world_size: u32,
    /// Of the group's ranks on this node.
    pub(crate) memory: OwnedFd,
    /// How to reach the others, and this rank's own listening socket.
    pub(crate) network: Option<(RankNetwork, OwnedFd)>,
    /// Steps that the server has heard of.
    pub(crate) steps_reported: Step,
    /// Faults that the job asked for and that have happened.
    pub(crate) faults_done: Vec<i32>,
    /// Whether there was a group before: then the state is whichever rank's is furthest.
    pub(crate) is_anew: bool,
}

impl Seat {
    /// The one that the process was started for.
    ///
    /// # Errors
    /// A descriptor is not what it should be.
    pub(crate) fn first(config: &RankConfig) -> io::Result<Self> {
        let memory = lockstep_shm::inherited_group_memory(config.group_fd)?;
        let network = match (&config.network, config.listener_fd) {
            (Some(network), Some(fd)) => {
                Some((network.clone(), lockstep_shm::inherited_socket(fd)?))
            }
            (Some(_), None) => return Err(invalid("a network without a listening socket")),
            (None, _) => None,
        };
        Ok(Self {
            generation: config.generation,
            rank: config.rank,
            world_size: config.world_size,
            memory,
            network,
            steps_reported: config.steps_reported,
            faults_done: config.faults_done.clone(),
            is_anew: config.heals,
        })
    }

    /// Of a group that forms in the place of another, with the descriptors that came with the word of it.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(crate) fn next(regroup: Regroup, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let Regroup { generation, rank, world_size, network, steps_reported, faults_done } =
            regroup;
        let mut descriptors = descriptors.into_iter();
        let memory = descriptors.next().ok_or_else(|| invalid("no memory came with a group"))?;
        let network = match network {
            Some(network) => {
                let socket = descriptors.next();
                Some((network, socket.ok_or_else(|| invalid("no socket came with a group"))?))
            }
            None => None,
        };
        Ok(Self {
            generation,
            rank,
            world_size,
            memory,
            network,
            steps_reported,
            faults_done,
            is_anew: true,
        })
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
