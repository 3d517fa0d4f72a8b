//! Ranks of several group memories: each gets its own socket, its group's memory and nobody else's.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;

use lockstep_api::AssignedNetwork;

use super::*;

/// A node and an assignment of three ranks to it, of which the first two share a memory.
fn apart(spans_hosts: bool) -> TestNode {
    let (node, mut assignment, notes, folder) = test_node("meet", 3, true, PATIENT);
    let nodes = vec![vec![Rank(0), Rank(1)], vec![Rank(2)]];
    assignment.network = Some(AssignedNetwork { nodes, spans_hosts, endpoints: None });
    assignment.spec.ddp.encrypt = true;
    (node, assignment, notes, folder)
}

/// Where each rank listens, in order.
fn endpoints(reports: &[Report]) -> Vec<Vec<String>> {
    let listens = reports.iter().filter_map(|report| match report {
        Report::RankListens { rank, endpoints } => Some((rank.0, endpoints.clone())),
        _ => None,
    });
    let (ranks, endpoints): (Vec<i32>, Vec<_>) = listens.unzip();
    assert_eq!(ranks, [0, 1, 2]);
    endpoints
}

async fn until_prepared(bench: &Bench) -> Vec<Vec<String>> {
    bench.until(|report| *report == Report::Prepared).await;
    assert_eq!(shorts(&bench.reports()), ["listens 0", "listens 1", "listens 2", "prepared"]);
    endpoints(&bench.reports())
}

fn assert_nobody_listens(endpoints: &[Vec<String>]) {
    for endpoint in endpoints.iter().flatten() {
        let error = TcpStream::connect(endpoint).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{endpoint}");
    }
}

#[tokio::test]
async fn ranks_are_started_with_their_own_sockets_once_all_endpoints_are_known() {
    let mut bench = Bench::on(apart(false));
    let endpoints = until_prepared(&bench).await;
    // Nobody can have taken the ports meanwhile: the agent listens.
    TcpStream::connect(&endpoints[2][0]).unwrap();
    let mut known = bench.assignment.clone();
    known.network.as_mut().unwrap().endpoints = Some(endpoints.clone());
    bench.want(known);
    let reports = bench.end().await;
    assert_eq!(shorts(&reports).last().unwrap(), "finished", "{reports:#?}");
    assert_nobody_listens(&endpoints);
}

#[tokio::test]
async fn an_attempt_that_waits_for_other_nodes_can_be_taken_back() {
    let bench = Bench::on(apart(false));
    let endpoints = until_prepared(&bench).await;
    bench.tell(Order::Kill);
    assert_eq!(shorts(&bench.end().await).last().unwrap(), "stopped");
    assert_nobody_listens(&endpoints);
}

#[tokio::test]
async fn a_node_without_an_address_for_others_is_refused_before_anything_is_fetched() {
    let (node, assignment, notes, folder) = apart(true);
    let mut node = Arc::into_inner(node).unwrap();
    node.reach.advertised = Some("127.0.0.1".parse().unwrap());
    let reports = Bench::on((Arc::new(node), assignment, notes, folder)).end().await;
    assert_eq!(shorts(&reports), ["failed interface_unreachable", "stopped"]);
    let message = verdict(&reports).message;
    assert!(message.starts_with("node alpha has no address"), "{message}");
    assert!(message.contains("--advertise-address"), "{message}");
}

/// In the rank: of all sockets that listen it has its own, of all memories its group's.
pub(super) fn look_at_what_was_inherited(config: &RankConfig) {
    let network = config.network.as_ref().unwrap();
    assert!(network.encrypt);
    let own = usize::try_from(config.rank.0).unwrap();
    let own_port = network.endpoints[own][0].parse::<SocketAddr>().unwrap().port();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|it| std::fs::read_link(it.unwrap().path()).ok());
    let links: Vec<String> = links.map(|it| it.to_string_lossy().into_owned()).collect();
    assert_eq!(links.iter().filter(|it| it.starts_with("/memfd:")).count(), 1, "{links:?}");
    let sockets: BTreeSet<&str> =
        links.iter().filter_map(|it| it.strip_prefix("socket:[")?.strip_suffix(']')).collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let listening = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_open = fields[3] == "0A" && sockets.contains(fields[9]);
        let port = || u16::from_str_radix(fields[1].split_once(':').unwrap().1, 16).unwrap();
        is_open.then(|| (port(), fields[9].to_owned()))
    });
    let listening: Vec<(u16, String)> = listening.collect();
    let link =
        std::fs::read_link(format!("/proc/self/fd/{}", config.listener_fd.unwrap())).unwrap();
    let inode = link.to_string_lossy().trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
    assert_eq!(listening, [(own_port, inode)], "{table}");
    let memory = std::fs::metadata(format!("/proc/self/fd/{}", config.group_fd)).unwrap().ino();
    std::fs::write(memory_file(config, config.rank.0), memory.to_string()).unwrap();
}

/// In rank 0, when all have begun.
pub(super) fn compare_memories(config: &RankConfig) {
    if config.rank == Rank(0) {
        let memories = [0, 1, 2].map(|rank| std::fs::read(memory_file(config, rank)).unwrap());
        assert_eq!(memories[0], memories[1]);
        assert_ne!(memories[1], memories[2]);
    }
}

fn memory_file(config: &RankConfig, rank: i32) -> Utf8PathBuf {
    Utf8PathBuf::from(&config.flight_record_path).with_file_name(format!("memory-{rank}"))
}
