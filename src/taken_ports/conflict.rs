//! The sockets that a node port keeps packets from. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nfnetlink::sock_diag::WaitingSocket;
use shunt_core::model::{Family, ObjectName, Protocol, Store};
use shunt_core::plan::FrontendKey;

/// The index of the loopback interface in each network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// The node ports in use, each with its Service. An API server gives each to one only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePorts(pub(crate) BTreeMap<FrontendKey, ObjectName>);

impl NodePorts {
    /// Returns the node ports of all Services.
    #[must_use]
    pub fn of(store: &Store) -> NodePorts {
        let mut ports = BTreeMap::new();
        for service in store.services() {
            for port in &service.ports {
                let Some(number) = port.node_port else { continue };
                for family in service.cluster_ips.iter().map(|address| Family::of(*address)) {
                    let key = FrontendKey::NodePort(family, port.protocol, number);
                    ports.insert(key, service.name.clone());
                }
            }
        }
        NodePorts(ports)
    }

    /// Returns the Service whose node port keeps packets from a socket at an address with node ports.
    /// `addresses` are those addresses; loopback has no node ports.
    pub(super) fn claim(
        &self,
        protocol: Protocol,
        socket: &WaitingSocket,
        addresses: &BTreeSet<IpAddr>,
    ) -> Option<&ObjectName> {
        // A socket of the loopback interface serves the node itself.
        if socket.interface == Some(LOOPBACK) {
            return None;
        }
        Family::ALL.into_iter().find_map(|family| {
            let is_covered = |address: &IpAddr| {
                Family::of(*address) == family && !address.is_loopback() && socket.accepts(*address)
            };
            let key = FrontendKey::NodePort(family, protocol, socket.port);
            self.0.get(&key).filter(|_| addresses.iter().any(is_covered))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn node_ports(keys: &[(Family, Protocol, u16)]) -> NodePorts {
        let key = |(family, protocol, port): &_| FrontendKey::NodePort(*family, *protocol, *port);
        NodePorts(keys.iter().map(|it| (key(it), ObjectName::new("shop", "web"))).collect())
    }

    fn socket(address: &str) -> WaitingSocket {
        WaitingSocket {
            address: ip(address),
            port: 30_080,
            v6_only: false,
            interface: None,
            uid: 0,
            inode: 7,
        }
    }

    const V4: &[(Family, Protocol, u16)] = &[(Family::V4, Protocol::Tcp, 30_080)];
    const V6: &[(Family, Protocol, u16)] = &[(Family::V6, Protocol::Tcp, 30_080)];

    #[track_caller]
    fn check(socket: WaitingSocket, keys: &[(Family, Protocol, u16)], expected: bool) {
        let addresses = ["192.0.2.10", "2001:db8::10", "127.0.0.1", "::1"].map(ip).into();
        let node_ports = node_ports(keys);
        let service = node_ports.claim(Protocol::Tcp, &socket, &addresses);
        assert_eq!(service.is_some(), expected, "{socket:?}");
    }

    #[test]
    fn sockets_at_addresses_with_node_ports_are_in_the_way() {
        check(socket("0.0.0.0"), V4, true);
        check(socket("0.0.0.0"), V6, false);
        check(socket("192.0.2.10"), V4, true);
        check(socket("::"), V4, true);
        check(socket("::"), V6, true);
        check(WaitingSocket { v6_only: true, ..socket("::") }, V4, false);
        check(socket("2001:db8::10"), V6, true);
    }

    #[test]
    fn sockets_at_other_addresses_are_not() {
        check(socket("127.0.0.1"), V4, false);
        check(socket("127.0.0.2"), V4, false);
        check(socket("::1"), V6, false);
        check(socket("192.0.2.11"), V4, false);
        check(WaitingSocket { interface: Some(1), ..socket("0.0.0.0") }, V4, false);
        check(WaitingSocket { interface: Some(2), ..socket("0.0.0.0") }, V4, true);
        check(WaitingSocket { port: 30_081, ..socket("0.0.0.0") }, V4, false);
        check(socket("0.0.0.0"), &[(Family::V4, Protocol::Udp, 30_080)], false);
    }

    #[test]
    fn without_addresses_no_socket_is_in_the_way() {
        let node_ports = node_ports(V4);
        let service = node_ports.claim(Protocol::Tcp, &socket("0.0.0.0"), &BTreeSet::new());
        assert_eq!(service, None);
    }
}
