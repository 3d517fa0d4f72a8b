//! How ranks come to know of ranks that share no memory with them.
//!
//! A socket is bound for each rank here and kept until its process has it: no port is chosen, announced and then hoped
//! for. Where it listens is told to the server. Once every node has told this and has everything that its ranks need,
//! the server tells all endpoints, and each rank is started with its own socket and everyone's endpoints. How long that
//! may take the server decides: it takes the attempt away.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use lockstep_api::{AssignedRank, Assignment, RankNetwork, Report};
use tokio::sync::watch;

use super::Told;
use super::reporter::Reporter;
use crate::network::{Listener, NetworkError};
use crate::node::{Node, blocking};

/// Sockets of the ranks here, in their order. Their endpoints have been reported.
#[derive(Debug)]
pub(crate) struct Sockets(Vec<OwnedFd>);

/// What one rank has because of the others.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Ranks with the same number share a group memory.
    pub(crate) memory_index: usize,
    /// Its own socket, if there is a network.
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) network: Option<RankNetwork>,
}

/// Binds and reports a socket for each rank of an attempt with a network.
pub(crate) async fn listen(
    node: &Arc<Node>,
    assignment: &Assignment,
    reporter: &mut Reporter,
) -> Result<Sockets, NetworkError> {
    let Some(network) = &assignment.network else { return Ok(Sockets(Vec::new())) };
    let (reach, count, spans_hosts) =
        (node.reach.clone(), assignment.ranks.len(), network.spans_hosts);
    let listeners = blocking(move || reach.listeners(count, spans_hosts)).await?;
    let mut sockets = Vec::with_capacity(count);
    for (assigned, Listener { socket, endpoints }) in assignment.ranks.iter().zip(listeners) {
        reporter.report(Report::RankListens { rank: assigned.rank, endpoints });
        sockets.push(socket);
    }
    Ok(Sockets(sockets))
}

/// Comes back once the server has told everyone's endpoints; at once if there is nobody to be met.
pub(crate) async fn until_known(
    assignment: &Assignment,
    told: &mut watch::Receiver<Told>,
    reporter: &mut Reporter,
) -> Arc<Assignment> {
    say_prepared(assignment, reporter);
    let is_known = |told: &Told| {
        told.wanted.generation == assignment.generation && are_endpoints_known(&told.wanted)
    };
    let known = told.wait_for(is_known).await.map(|told| told.wanted.clone());
    match known {
        Ok(known) => known,
        // The session is gone; so is everything else in a moment.
        Err(_) => std::future::pending().await,
    }
}

/// Everything is there that the ranks here need, whom others wait for.
pub(crate) fn say_prepared(assignment: &Assignment, reporter: &mut Reporter) {
    if assignment.network.is_some() {
        reporter.report(Report::Prepared);
    }
}

/// Whether every rank of the attempt can be reached by what is known of it.
pub(crate) fn are_endpoints_known(assignment: &Assignment) -> bool {
    assignment.network.as_ref().is_none_or(|network| network.endpoints.is_some())
}

/// Seats the ranks here, in their order. All endpoints are known.
pub(crate) fn seats(assignment: &Assignment, Sockets(sockets): Sockets) -> Vec<Seat> {
    let Some(network) = &assignment.network else {
        let alone = || Seat { memory_index: 0, listener: None, network: None };
        return assignment.ranks.iter().map(|_| alone()).collect();
    };
    let seat = |(assigned, socket): (&AssignedRank, OwnedFd)| {
        let memory_index = network.nodes.iter().position(|ranks| ranks.contains(&assigned.rank));
        Seat {
            memory_index: memory_index.unwrap_or_default(),
            listener: Some(socket),
            network: Some(RankNetwork {
                nodes: network.nodes.clone(),
                endpoints: network.endpoints.clone().unwrap_or_default(),
                encrypt: assignment.spec.ddp.encrypt,
            }),
        }
    };
    assignment.ranks.iter().zip(sockets).map(seat).collect()
}
