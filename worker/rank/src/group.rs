//! How this rank joins its process group: from what the agent handed down to a reducer.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use lockstep_api::{
    DigestCheck, FailureCode, Hook, JobSpec, PowerSgdSpec, Rank, RankConfig, RankNetwork,
    Reduction, Shard,
};
use lockstep_collective::{GroupError, Links, MAX_WORLD, Network};
use lockstep_ddp::hook::PowerSgdConfig;
use lockstep_ddp::{HookKind, Interrupt, Join, Reducer, ReducerConfig, Topology};
use lockstep_tensor::Layout;

use crate::failure::Failure;
use crate::link::AgentLink;
use crate::loss::MAX_METRICS;
use crate::position::Position;
use crate::seat::Seat;
use lockstep_service::chain;

const MIB: usize = 1 << 20;

/// Another thread meets the other ranks while this one goes on.
pub(crate) fn begin_forming(
    config: &RankConfig,
    seat: Seat,
    layout: &Arc<Layout>,
    has_norms: bool,
    (link, position): (&AgentLink, &Position),
) -> Result<JoinHandle<Result<Reducer, GroupError>>, Failure> {
    let rank_error = |what: &'static str| {
        move |error: io::Error| Failure::new(FailureCode::RankError, format!("{what}: {error}"))
    };
    let topology = topology(&seat)?;
    let rank = index(seat.rank);
    let mut reducer_config = reducer_config(config);
    reducer_config.joins_batches =
        config.spec.ddp.sync_batch_norm && has_norms && 1 < seat.world_size;
    let (memory, generation) = (seat.memory, seat.generation.0.cast_unsigned());
    let network = match seat.network {
        Some((network, listener)) => {
            let listener = TcpListener::from(listener);
            let links = position.faults().begin_links();
            let network = network_of(config, &network, listener, (generation, links));
            Some(network.map_err(rank_error("cannot use this rank's network"))?)
        }
        None => None,
    };
    let limits = config.spec.timeouts.effective();
    let (timeout, formation) = (limits.collective(), limits.formation());
    let computing = config.spec.train.threads as usize;
    let (layout, record) = (Arc::clone(layout), Some(Arc::clone(position.record())));
    let interrupt = Interrupt::default();
    link.interrupts(&interrupt);
    let form = move || {
        let memory: OwnedFd = memory;
        // Those that compute, and those that communicate.
        let threads_per_rank = computing + reducer_config.groups;
        let memory = memory.as_fd();
        let join = Join {
            memory,
            rank,
            topology,
            network,
            timeout,
            formation,
            threads_per_rank,
            record,
            interrupt,
        };
        let mut reducer = Reducer::new(join, layout, reducer_config)?;
        // Guests are still being compiled: whoever is done first waits for the others.
        reducer.announce_pause(limits.pause())?;
        Ok(reducer)
    };
    thread::Builder::new()
        .name("group-forming".to_owned())
        .spawn(form)
        .map_err(rank_error("cannot start a thread"))
}

fn reducer_config(config: &RankConfig) -> ReducerConfig {
    let spec = &config.spec;
    ReducerConfig {
        bucket_bytes: spec.ddp.bucket_mib as usize * MIB,
        first_bucket_bytes: spec.ddp.first_bucket_mib as usize * MIB,
        reduction: match spec.ddp.reduction {
            Reduction::Fast => lockstep_ddp::Reduction::Fast,
            Reduction::FixedTree => lockstep_ddp::Reduction::FixedTree,
        },
        hook: match spec.ddp.hook {
            Hook::Mean => HookKind::Mean,
            Hook::Bf16 => HookKind::Bf16,
            Hook::F16 => HookKind::F16,
            Hook::PowerSgd => HookKind::PowerSgd(power_sgd(spec)),
        },
        groups: spec.ddp.groups as usize,
        is_sharded: spec.ddp.shard == Shard::Zero1,
        is_strict: spec.ddp.digest == DigestCheck::Strict,
        settings: vec![
            ("train.seed".to_owned(), spec.train.seed.to_string()),
            ("train.global_batch".to_owned(), spec.train.global_batch.to_string()),
            ("train.micro_batch".to_owned(), spec.train.micro_batch.to_string()),
            ("ddp.sync_every".to_owned(), spec.ddp.sync_every.to_string()),
            ("ddp.compare_every".to_owned(), spec.ddp.compare_every.to_string()),
        ],
        max_grains: spec.train.global_batch.div_ceil(spec.train.micro_batch) as usize,
        metric_count: MAX_METRICS,
        ..ReducerConfig::default()
    }
}

fn power_sgd(spec: &JobSpec) -> PowerSgdConfig {
    let PowerSgdSpec { rank, start_step, min_compression_rate } = spec.ddp.power_sgd;
    let rank = NonZeroUsize::new(rank as usize).unwrap_or(NonZeroUsize::MIN);
    let seed = spec.train.seed;
    PowerSgdConfig { rank, start_step, min_compression_rate, seed, ..PowerSgdConfig::default() }
}

/// Who shares a node; it agrees with the rest of the configuration.
fn topology(seat: &Seat) -> Result<Topology, Failure> {
    let refuse = |message: String| Failure::new(FailureCode::RankError, message);
    let world = seat.world_size as usize;
    if !(1..=MAX_WORLD).contains(&world) || world <= index(seat.rank) {
        return Err(refuse(format!("rank {} of {world}", seat.rank)));
    }
    let Some((network, _)) = &seat.network else { return Ok(Topology::one_node(world)) };
    let node = |ranks: &Vec<Rank>| {
        let first = ranks.first().copied().map_or(0, index);
        first..first.saturating_add(ranks.len())
    };
    let topology = Topology::new(network.nodes.iter().map(node).collect())
        .map_err(|error| refuse(chain(&error)))?;
    if topology.world() != world || network.endpoints.len() != world {
        let (nodes, endpoints) = (topology.world(), network.endpoints.len());
        return Err(refuse(format!("{nodes} ranks on nodes and {endpoints} endpoints of {world}")));
    }
    Ok(topology)
}

fn network_of(
    config: &RankConfig,
    network: &RankNetwork,
    listener: TcpListener,
    (generation, links): (u64, Links),
) -> io::Result<Network> {
    let parse = |text: &String| {
        text.parse::<SocketAddr>().map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("the endpoint {text:?} is none"))
        })
    };
    let endpoints = network.endpoints.iter();
    let endpoints =
        endpoints.map(|listed| listed.iter().map(parse).collect()).collect::<Result<_, _>>()?;
    Ok(Network {
        listener,
        endpoints,
        key: config.attempt_key.clone().into_bytes(),
        generation,
        encrypt: network.encrypt,
        links,
    })
}

fn index(rank: Rank) -> usize {
    usize::try_from(rank.0).unwrap_or(usize::MAX)
}
