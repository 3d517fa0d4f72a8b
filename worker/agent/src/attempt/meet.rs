//! How ranks come to know of ranks that share no memory with them.
//!
//! A socket is bound for each rank here and kept until its process has it: no port is chosen, announced and then hoped
//! for. Where it listens is told to the server. Once every node has told this and has everything that its ranks need,
//! the server tells all endpoints, and each rank is started with its own socket and everyone's endpoints. How long that
//! may take the server decides: it takes the attempt away.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use lockstep_api::{Assignment, Rank, RankNetwork, Report};
use tokio::sync::watch;

use super::Told;
use super::reporter::Reporter;
use crate::network::{Listener, NetworkError};
use crate::node::{Node, blocking};
use crate::spawn::Inherited;

/// Sockets of the ranks here, in their order. Their endpoints have been reported.
#[derive(Debug)]
pub(crate) struct Sockets(Vec<OwnedFd>);

/// What one rank is started with because of the others.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) inherited: Inherited,
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
    for (rank, Listener { socket, endpoints }) in assignment.ranks.iter().zip(listeners) {
        reporter.report(Report::RankListens { rank: *rank, endpoints });
        sockets.push(socket);
    }
    Ok(Sockets(sockets))
}

/// Everyone's endpoints, once the server tells them.
async fn endpoints(told: &mut watch::Receiver<Told>) -> Vec<Vec<String>> {
    let known = told.wait_for(|told| told.endpoints.is_some()).await;
    let known = known.ok().and_then(|told| told.endpoints.clone());
    match known {
        Some(endpoints) => endpoints,
        // The session is gone; so is everything else in a moment.
        None => std::future::pending().await,
    }
}

/// Says that everything is there that the ranks here need, waits for the others, and seats the ranks in their order.
pub(crate) async fn seats(
    assignment: &Assignment,
    Sockets(sockets): Sockets,
    told: &mut watch::Receiver<Told>,
    reporter: &mut Reporter,
) -> Vec<Seat> {
    let Some(network) = &assignment.network else {
        let alone =
            || Seat { inherited: Inherited { memory_index: 0, listener: None }, network: None };
        return assignment.ranks.iter().map(|_| alone()).collect();
    };
    reporter.report(Report::Prepared);
    let endpoints = endpoints(told).await;
    let seat = |(rank, socket): (&Rank, OwnedFd)| {
        let network = RankNetwork {
            listener_fd: socket.as_raw_fd(),
            nodes: network.nodes.clone(),
            endpoints: endpoints.clone(),
            encrypt: assignment.spec.ddp.encrypt,
        };
        let memory_index = network.nodes.iter().position(|ranks| ranks.contains(rank));
        let memory_index = memory_index.unwrap_or_default();
        Seat {
            inherited: Inherited { memory_index, listener: Some(socket) },
            network: Some(network),
        }
    };
    assignment.ranks.iter().zip(sockets).map(seat).collect()
}
