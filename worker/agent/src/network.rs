//! Where ranks of other nodes can reach those of this one, and the sockets that they reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// Most addresses that are told of one rank.
const CANDIDATES: usize = 8;
/// Connections that may wait to be accepted: more than a gang has ranks.
const BACKLOG: i32 = 128;
/// Where the kernel says which start of which machine this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// This process's network namespace.
const NETWORK_NAMESPACE: &str = "/proc/self/ns/net";

/// How this node is reached.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    /// For sentences.
    pub(crate) node_name: String,
    /// Machine and network namespace.
    pub(crate) host: String,
    /// What the operator says.
    pub(crate) advertised: Option<IpAddr>,
    /// The server, as `http://HOST:PORT`.
    pub(crate) server: String,
}

/// A socket that waits for a rank.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Bound and listening; closed on exec.
    pub(crate) socket: OwnedFd,
    /// Where it is reached, best first.
    pub(crate) endpoints: Vec<String>,
}

/// Why ranks here cannot meet those of other nodes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// Nobody else could connect.
    #[error(
        "node {node_name} has no address at which ranks on other hosts could reach its own (it has {found}); \
         give its agent one with --advertise-address"
    )]
    Unreachable {
        /// Which.
        node_name: String,
        /// What it has.
        found: String,
    },
    /// The system's refusal.
    #[error("cannot listen for other ranks: {0}")]
    Socket(#[from] io::Error),
}

impl Reach {
    /// A socket for each of `count` ranks. Asks the system, and perhaps a name server: not for the runtime's threads.
    pub(crate) fn listeners(
        &self,
        count: usize,
        spans_hosts: bool,
    ) -> Result<Vec<Listener>, NetworkError> {
        if !spans_hosts {
            // Nobody else has to get in.
            let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
            return (0..count).map(|_| Ok(listener(loopback, &[loopback])?)).collect();
        }
        let found = match self.advertised {
            Some(address) => vec![address],
            None => self.route().into_iter().chain(interfaces()?).collect(),
        };
        let reached = reached_from_elsewhere(&found);
        if reached.is_empty() {
            return Err(NetworkError::Unreachable {
                node_name: self.node_name.clone(),
                found: listed(&found),
            });
        }
        (0..count).map(|_| Ok(self.listen_at(&reached)?)).collect()
    }

    /// Where `addresses` are. An advertised one may belong to a machine in between, which passes on what it gets.
    fn listen_at(&self, addresses: &[IpAddr]) -> io::Result<Listener> {
        if let Some(address) = self.advertised
            && let Ok(listener) = listener(address, addresses)
        {
            return Ok(listener);
        }
        if addresses.iter().any(IpAddr::is_ipv6)
            && let Ok(listener) = listener(Ipv6Addr::UNSPECIFIED.into(), addresses)
        {
            return Ok(listener);
        }
        let v4: Vec<IpAddr> = addresses.iter().copied().filter(IpAddr::is_ipv4).collect();
        listener(Ipv4Addr::UNSPECIFIED.into(), &v4)
    }

    /// This machine's address on the way to the server. Nothing is sent.
    fn route(&self) -> Option<IpAddr> {
        let authority = self.server.split("://").last()?.split('/').next()?;
        let has_port =
            authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let target = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let local = |any: IpAddr| {
            let socket = UdpSocket::bind((any, 0)).ok()?;
            socket.connect(&target).ok()?;
            Some(socket.local_addr().ok()?.ip().to_canonical())
        };
        local(Ipv4Addr::UNSPECIFIED.into()).or_else(|| local(Ipv6Addr::UNSPECIFIED.into()))
    }
}

/// Addresses of all interfaces, in the system's order.
fn interfaces() -> io::Result<Vec<IpAddr>> {
    Ok(if_addrs::get_if_addrs()?.into_iter().map(|interface| interface.ip()).collect())
}

/// Those of `found` that mean this machine on another one too, each once.
fn reached_from_elsewhere(found: &[IpAddr]) -> Vec<IpAddr> {
    let is_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let mut reached = Vec::new();
    for address in found.iter().map(IpAddr::to_canonical) {
        let is_common = address.is_loopback() || address.is_unspecified() || address.is_multicast();
        if !is_common && !is_local(&address) && !reached.contains(&address) {
            reached.push(address);
        }
    }
    reached.truncate(CANDIDATES);
    reached
}

fn listed(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "none at all".to_owned() } else { format!("only {}", texts.join(", ")) }
}

/// Listens at `at`, on a port that the system chooses, and says that it is reached at `addresses`.
fn listener(at: IpAddr, addresses: &[IpAddr]) -> io::Result<Listener> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &SocketAddr::new(at, 0))?;
    listen(&socket, BACKLOG)?;
    let socket = TcpListener::from(socket);
    let port = socket.local_addr()?.port();
    let endpoints = addresses.iter().map(|it| SocketAddr::new(*it, port).to_string()).collect();
    Ok(Listener { socket: socket.into(), endpoints })
}

/// Which machine and network namespace this process is in; `fallback`, which is nobody else's, if the system does not say.
pub(crate) fn host_identity(fallback: &str) -> String {
    let boot = std::fs::read_to_string(BOOT_ID);
    let namespace = std::fs::metadata(NETWORK_NAMESPACE);
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{}/{}", boot.trim(), namespace.ino()),
        _ => fallback.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpStream;

    use super::*;

    fn reach(advertised: Option<&str>) -> Reach {
        Reach {
            node_name: "alpha".to_owned(),
            host: "one".to_owned(),
            advertised: advertised.map(|it| it.parse().unwrap()),
            server: "http://127.0.0.1:9".to_owned(),
        }
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_that_mean_another_machine_elsewhere_are_left_out_and_the_order_is_kept() {
        let found = addresses(&[
            "10.0.0.7",
            "127.0.0.1",
            "::1",
            "169.254.3.4",
            "fe80::1",
            "10.0.0.7",
            "fd00::2",
            "0.0.0.0",
            "::ffff:10.0.0.8",
        ]);
        assert_eq!(reached_from_elsewhere(&found), addresses(&["10.0.0.7", "fd00::2", "10.0.0.8"]));
        let many: Vec<IpAddr> = (1..20).map(|last| Ipv4Addr::new(10, 0, 0, last).into()).collect();
        assert_eq!(reached_from_elsewhere(&many), many[..CANDIDATES]);
    }

    #[test]
    fn ranks_of_one_host_listen_at_loopback_whatever_is_advertised() {
        let listeners = reach(Some("192.0.2.1")).listeners(2, false).unwrap();
        assert_ne!(listeners[0].endpoints, listeners[1].endpoints);
        for Listener { socket, endpoints } in listeners {
            let [endpoint] = &endpoints[..] else { panic!("{endpoints:?}") };
            assert!(endpoint.starts_with("127.0.0.1:"), "{endpoint}");
            let mut stream = TcpStream::connect(endpoint).unwrap();
            let (accepted, _) = TcpListener::from(socket).accept().unwrap();
            drop(accepted);
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn an_advertised_address_is_told_even_if_it_is_another_machines() {
        let listeners = reach(Some("192.0.2.1")).listeners(1, true).unwrap();
        let endpoint: SocketAddr = listeners[0].endpoints[0].parse().unwrap();
        assert_eq!(endpoint.ip(), addresses(&["192.0.2.1"])[0]);
        TcpStream::connect((Ipv4Addr::LOCALHOST, endpoint.port())).unwrap();
    }

    #[test]
    fn a_node_that_nobody_else_can_reach_is_refused_by_name() {
        let error = reach(Some("127.0.0.1")).listeners(1, true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "node alpha has no address at which ranks on other hosts could reach its own (it has only 127.0.0.1); \
             give its agent one with --advertise-address"
        );
    }

    #[test]
    fn a_socket_for_both_families_is_reached_through_either() {
        let both = addresses(&["10.0.0.7", "fd00::2"]);
        let Ok(listener) = listener(Ipv6Addr::UNSPECIFIED.into(), &both) else {
            // A machine without IPv6 has no addresses of it either.
            return;
        };
        let v4: SocketAddr = listener.endpoints[0].parse().unwrap();
        let v6: SocketAddr = listener.endpoints[1].parse().unwrap();
        assert_eq!((v4.port(), v4.ip(), v6.ip()), (v6.port(), both[0], both[1]));
        TcpStream::connect((Ipv4Addr::LOCALHOST, v4.port())).unwrap();
    }

    #[test]
    fn the_way_to_the_server_begins_at_an_address_of_this_machine() {
        for server in ["http://127.0.0.1:9", "http://127.0.0.1", "http://localhost:9/"] {
            let reach = Reach { server: server.to_owned(), ..reach(None) };
            assert!(reach.route().is_some_and(|it| it.is_loopback()), "{server}");
        }
        assert!(interfaces().unwrap().iter().any(IpAddr::is_loopback));
    }

    #[test]
    fn a_host_is_the_same_for_all_that_are_on_it() {
        assert_eq!(host_identity("a"), host_identity("b"));
    }
}
