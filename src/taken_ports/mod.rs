//! Finds processes of the node that listen on a node port in use.
//!
//! Destination NAT comes before the socket, so packets to that port go to the Service. At the
//! addresses with node ports, no client reaches the process. It still answers elsewhere, as on loopback.
//! kube-proxy up to 1.20 held the ports, so that no other process could have them. shunt holds none:
//! it reports such a process, and blocks nothing.
//!
//! Owns: which sockets are in the way (`conflict`, pure), their listing ([`taken_now`]), and the
//! [`Report`].
//!
//! Must not know: the kernel's rules, the log and metrics.

mod conflict;
mod report;
pub mod socket_owners;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use nfnetlink::Error;
use nfnetlink::sock_diag::{SockDiag, Transport, WaitingSocket};
use shunt_core::model::Protocol;

use self::socket_owners::owners;

pub use conflict::NodePorts;
use conflict::taken_sockets;
pub use report::{Report, TakenPort};

/// This directory exists if the kernel has SCTP, so that listing its sockets does not load it.
const SCTP: &str = "/proc/thread-self/net/sctp";

/// Returns the node ports on which other processes listen now, in the network namespace of this
/// thread.
///
/// # Errors
/// If the kernel does not list sockets.
pub fn taken_now(
    node_ports: &NodePorts,
    addresses: &BTreeSet<IpAddr>,
) -> Result<Vec<TakenPort>, Error> {
    let found = taken_sockets(list_sockets(&node_ports.protocols())?, node_ports, addresses);
    let sockets = found.values().flat_map(|(_, sockets)| sockets);
    let owners = owners(&sockets.map(|socket| socket.inode).collect());
    let own = std::process::id();
    let taken = found.into_iter().filter_map(|(key, (service, mut sockets))| {
        let is_own = |inode| owners.get(&inode).is_some_and(|owner| owner.process == own);
        sockets.retain(|socket| !is_own(socket.inode));
        let owner = |inode| owners.get(&inode).cloned();
        (!sockets.is_empty()).then(|| TakenPort::new(key, (service, sockets), owner))
    });
    Ok(taken.collect())
}

/// Lists the sockets of these protocols that wait for packets.
fn list_sockets(protocols: &BTreeSet<Protocol>) -> Result<Vec<(Protocol, WaitingSocket)>, Error> {
    let mut found = Vec::new();
    if protocols.is_empty() {
        return Ok(found);
    }
    let mut kernel = SockDiag::open()?;
    for protocol in protocols {
        let transport = match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp if !Path::new(SCTP).exists() => continue,
            Protocol::Sctp => Transport::Sctp,
        };
        let sockets = kernel.waiting(transport)?;
        found.extend(sockets.into_iter().map(|socket| (*protocol, socket)));
    }
    Ok(found)
}
