//! Connections that were never answered: their retransmissions change nothing that the agent has
//! decided since.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, socket, sockopt,
};
use shunt_testbed::{Host, Protocol, Service};

use super::changes::Changes;
use crate::table::{Case, Table};
use crate::world::{World, slices, web};

/// Not SCTP: an entry without an answer expires before the INIT is sent again.
const HALF_OPEN: Table = Table::ALL.on(&[Protocol::Tcp, Protocol::Udp]);

/// Linux sends a SYN again after 1 s and after 3 s (`TCP_TIMEOUT_INIT`, doubled).
const TWO_RETRANSMISSIONS: Duration = Duration::from_millis(3500);
const BETWEEN_DATAGRAMS: Duration = Duration::from_millis(50);

/// A client that was not answered yet, and goes on asking.
enum Client {
    Tcp(OwnedFd),
    Udp(UdpSocket),
}

impl Client {
    /// Asks for the first time, in the network namespace of the calling thread.
    fn ask(protocol: Protocol, to: SocketAddr) -> Result<Client> {
        if protocol == Protocol::Udp {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            socket.send(b"anyone?")?;
            return Ok(Client::Udp(socket));
        }
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Stream, flags, None)?;
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => Ok(Client::Tcp(socket)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends another datagram, and returns true if a server has answered. TCP sends its SYN again
    /// by itself.
    fn is_answered(&self) -> Result<bool> {
        match self {
            Client::Tcp(socket) => {
                let mut poll_fd = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
                let ready = poll(&mut poll_fd, PollTimeout::ZERO)? > 0;
                let error = getsockopt(socket, sockopt::SocketError)?;
                ensure!(error == 0, "connect(): {}", Errno::from_raw(error));
                Ok(ready)
            }
            Client::Udp(socket) => {
                if socket.recv(&mut [0; 256]).is_ok() {
                    return Ok(true);
                }
                socket.send(b"anyone?")?;
                Ok(false)
            }
        }
    }
}

/// Makes a pod receive everything and answer nothing.
fn silence(pod: &Host) -> Result<()> {
    pod.nft(
        "table inet silence {
             chain input { type filter hook input priority 0; meta l4proto { tcp, udp } drop; }
         }",
    )
}

fn with_affinity() -> Service {
    web().spec("sessionAffinity: ClientIP")
}

/// The entries of session affinity that name an address of the pod.
fn learned(world: &World, pod: &Host) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for family in ["ip", "ip6"] {
        let map = world.lab.node.output("nft", &["list", "map", family, "shunt", "affinity"])?;
        let lines = map.lines().filter(|line| line.contains(" expires "));
        let entries = lines.flat_map(|line| line.split(','));
        let names_pod = |entry: &&str| {
            let value = entry.rsplit(" : ").next().unwrap_or_default();
            pod.ips().any(|ip| value.trim().starts_with(&format!("{ip} . ")))
        };
        found.extend(entries.filter(names_pod).map(str::to_owned));
    }
    Ok(found)
}

#[test]
fn a_retransmission_does_not_restore_affinity_to_a_removed_endpoint() -> Result<()> {
    let world = World::new()?;
    silence(&world.lab.pod1)?;
    world.manifests.write("web.yaml", with_affinity())?;
    world.manifests.write("slices.yaml", slices("web", &[&world.lab.pod1]))?;
    let changes = Changes::start(&world)?;

    let cases = HALF_OPEN.cases();
    let origins = [&world.lab.client, &world.lab.pod2, &world.lab.node];
    let mut clients: Vec<(&Host, Case, Client)> = Vec::new();
    for origin in origins {
        let asked = origin.run(|| {
            let ask = |case: &Case| Client::ask(case.protocol, case.address());
            cases.iter().map(ask).collect::<Result<Vec<_>>>()
        })?;
        clients.extend(cases.iter().zip(asked).map(|(case, client)| (origin, *case, client)));
    }
    let start = Instant::now();
    while learned(&world, &world.lab.pod1)?.len() < clients.len() {
        ensure!(start.elapsed() < Duration::from_secs(30), "the clients have no affinity yet");
    }

    changes.write(&world, "slices.yaml", slices("web", &[&world.lab.pod3]))?;
    let replaced = Instant::now();
    while replaced.elapsed() < TWO_RETRANSMISSIONS && !clients.is_empty() {
        let mut waiting = Vec::new();
        for (origin, case, client) in clients {
            if !client.is_answered()? {
                waiting.push((origin, case, client));
            }
        }
        clients = waiting;
        thread::sleep(BETWEEN_DATAGRAMS);
    }

    let restored = learned(&world, &world.lab.pod1)?;
    assert!(restored.is_empty(), "affinity to the removed endpoint:\n{}", restored.join("\n"));
    for origin in origins {
        HALF_OPEN.check(&format!("a new connection from {origin}"), |case| {
            world.lab.from(origin).probe(case.protocol, case.address()).reaches(&["pod-3"]);
            Ok(())
        })?;
    }
    Ok(())
}
