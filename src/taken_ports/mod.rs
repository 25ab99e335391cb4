//! Finds processes of the node that listen on a node port in use.
//!
//! Destination NAT comes before the socket, so packets to that port go to the Service. At the
//! addresses with node ports, no client reaches the process. It still answers elsewhere, as on loopback.
//! kube-proxy up to 1.20 held the ports, so that no other process could have them. shunt holds none:
//! it reports such a process, and blocks nothing.
//!
//! Owns: which sockets are in the way (`conflict`, pure), their listing ([`taken_now`]), and the
//! [`TakenPorts`].
//!
//! Must not know: the kernel's rules, the log and metrics.

mod conflict;
mod report;
pub mod socket_owners;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use nfnetlink::Error;
use nfnetlink::sock_diag::waiting;
use shunt_core::model::Protocol;

use self::socket_owners::owners;

pub use conflict::NodePorts;
use report::protocol_name;
pub use report::{TakenPort, TakenPorts};

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
    if node_ports.0.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for protocol in Protocol::ALL {
        if protocol == Protocol::Sctp && !Path::new(SCTP).exists() {
            continue;
        }
        let sockets = waiting(protocol.number())?.into_iter();
        found.extend(sockets.filter_map(|socket| {
            Some((node_ports.claim(protocol, &socket, addresses)?, protocol, socket))
        }));
    }
    let owners = owners(&found.iter().map(|(.., socket)| socket.inode).collect());
    let mut taken: BTreeMap<(Protocol, u16), TakenPort> = BTreeMap::new();
    for (service, protocol, socket) in found {
        let owner = owners.get(&socket.inode);
        if owner.is_some_and(|owner| owner.process == std::process::id()) {
            continue;
        }
        let port = taken.entry((protocol, socket.port)).or_insert_with(|| TakenPort {
            protocol: protocol_name(protocol),
            port: socket.port,
            service: service.to_string(),
            ..TakenPort::default()
        });
        port.addresses.insert(socket.address);
        port.processes.extend(owner.cloned());
    }
    Ok(taken.into_values().collect())
}
