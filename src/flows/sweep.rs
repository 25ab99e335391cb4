//! Decides which entries are stale, without the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nfnetlink::conntrack::Connection;
use shunt_core::model::{Backend, Family, Protocol};
use shunt_core::plan::{Flow, Flows, FrontendKey, merge_flows};

/// The frontends of a sweep, with the backends that their flows may use.
///
/// An entry is stale if its client sent to one of the frontends and its answers come from another
/// address than those of its backends. That is a removed endpoint or, without address translation
/// at the start of the flow, the frontend's own address. A UDP socket that keeps sending would keep
/// such an entry alive for ever.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// The backends of each frontend to which its flows may stay.
    flows: Flows,
    /// The addresses of node ports. Every sweep has them, and a merge keeps the latest. For an
    /// address that loses its node ports, name its former frontends as [`FrontendKey::Address`]:
    /// the lookup tries these first, like the rules. For the same reason, a sweep of a node port
    /// must name the frontends that hide it on one of these addresses, such as an ExternalIP that
    /// is the node's own, with the same port number.
    node_addresses: BTreeSet<IpAddr>,
}

impl Sweep {
    /// Makes a sweep of these frontends.
    #[must_use]
    pub fn new(flows: Flows, node_addresses: BTreeSet<IpAddr>) -> Sweep {
        Sweep { flows, node_addresses }
    }

    /// Merges a later sweep, which replaces the backends of frontends in both.
    pub fn merge(&mut self, later: Sweep) {
        merge_flows(&mut self.flows, later.flows);
        self.node_addresses = later.node_addresses;
    }

    /// Returns true if the entry must be deleted.
    #[must_use]
    pub fn is_stale(&self, entry: &Connection) -> bool {
        entry.zone == 0 && self.flow(entry).is_some_and(|flow| !serves(flow, entry))
    }

    /// Returns true if the entry leads from one of the frontends to one of its backends.
    #[must_use]
    pub fn permits(&self, entry: &Connection) -> bool {
        self.flow(entry).is_some_and(|flow| serves(flow, entry))
    }

    /// Returns the backends of the frontend that a client of UDP sent to; `None` if the sweep does not
    /// include the frontend.
    fn flow(&self, entry: &Connection) -> Option<&Flow> {
        let protocol = Protocol::Udp;
        if entry.protocol != protocol.number() {
            return None;
        }
        let (address, port) = (entry.original.destination.ip(), entry.original.destination.port());
        let by_address = FrontendKey::Address(address, protocol, port);
        let by_node_port = || {
            let key = FrontendKey::NodePort(Family::of(address), protocol, port);
            self.node_addresses.contains(&address).then(|| self.flows.get(&key))?
        };
        self.flows.get(&by_address).or_else(by_node_port)
    }

    /// Returns true if a family's entries must be searched.
    pub(super) fn searches(&self, family: Family) -> bool {
        self.flows.iter().any(|(key, flow)| flow.search && key.family() == family)
    }

    /// Returns the ports of a family's frontends whose entries must be searched.
    pub(super) fn ports(&self, family: Family) -> BTreeSet<u16> {
        self.flows
            .iter()
            .filter(|(key, flow)| flow.search && key.family() == family)
            .map(|(key, _)| match *key {
                FrontendKey::Address(_, _, port) | FrontendKey::NodePort(_, _, port) => port,
            })
            .collect()
    }
}

/// Returns true if the answers of an entry come from a backend of the flow.
fn serves(flow: &Flow, entry: &Connection) -> bool {
    let answers_from =
        Backend { address: entry.reply.source.ip(), port: entry.reply.source.port() };
    flow.serving.binary_search(&answers_from).is_ok()
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use nfnetlink::conntrack::Tuple;

    use super::*;

    const UDP: u8 = 17;

    /// Returns an entry like from a dump, with its client, destination and answering address.
    pub(in crate::flows) fn entry_of(
        protocol: u8,
        client: &str,
        destination: &str,
        endpoint: &str,
    ) -> Connection {
        let parse = |text: &str| -> SocketAddr { text.parse().expect("address:port") };
        let original = Tuple { source: parse(client), destination: parse(destination) };
        let reply = Tuple { source: parse(endpoint), destination: parse(client) };
        Connection { protocol, original, reply, answered: true, zone: 0, id: [0, 0, 0, 1] }
    }

    fn backends(list: &[&str]) -> Flow {
        let backend = |text: &&str| {
            let address: SocketAddr = text.parse().expect("address:port");
            Backend { address: address.ip(), port: address.port() }
        };
        Flow { serving: list.iter().map(backend).collect(), search: true }
    }

    fn at(address: &str, protocol: Protocol) -> FrontendKey {
        let address: SocketAddr = address.parse().expect("address:port");
        FrontendKey::Address(address.ip(), protocol, address.port())
    }

    fn sweep() -> Sweep {
        let v4 = backends(&["10.244.0.1:5353", "10.244.0.2:5353"]);
        let v6 = backends(&["[fd00:244::1]:5353"]);
        Sweep::new(
            Flows::from_iter([
                (at("10.96.0.10:53", Protocol::Udp), v4.clone()),
                (at("10.96.0.10:55", Protocol::Udp), Flow { search: false, ..v4.clone() }),
                (at("10.96.0.66:53", Protocol::Udp), backends(&[])),
                (at("[fd00:96::10]:53", Protocol::Udp), v6.clone()),
                (FrontendKey::NodePort(Family::V4, Protocol::Udp, 30053), v4),
                (FrontendKey::NodePort(Family::V6, Protocol::Udp, 30054), v6),
                // A former node port, or an ExternalIP of another service port with the same
                // number.
                (at("192.0.2.11:30053", Protocol::Udp), backends(&["10.244.0.9:1"])),
            ]),
            ["192.0.2.10", "192.0.2.11", "2001:db8::10"]
                .iter()
                .map(|a| a.parse().expect("an address"))
                .collect(),
        )
    }

    #[test]
    fn stale_is_what_a_frontend_leads_to_and_nothing_serves() {
        const CLIENT: &str = "192.0.2.100:40000";
        const CLIENT6: &str = "[2001:db8::100]:40000";
        for (destination, answers_from, stale, why) in [
            ("10.96.0.10:53", "10.244.0.1:5353", false, "an endpoint"),
            ("10.96.0.10:53", "10.244.0.2:5353", false, "another endpoint"),
            ("10.96.0.10:53", "10.244.0.3:5353", true, "an endpoint that is gone"),
            ("10.96.0.10:53", "10.244.0.1:53", true, "the endpoint's former port"),
            ("10.96.0.10:53", "10.96.0.10:53", true, "sent before there was a Service"),
            ("10.96.0.66:53", "10.244.0.1:5353", true, "no endpoint is left"),
            ("10.96.0.10:54", "10.244.0.1:5353", false, "a port that is no UDP frontend"),
            ("10.96.0.11:53", "10.244.0.3:5353", false, "an address of another Service"),
            ("10.244.0.3:5353", "10.244.0.3:5353", false, "directly to a pod"),
            ("192.0.2.10:30053", "10.244.0.2:5353", false, "node port, an endpoint"),
            ("192.0.2.10:30053", "10.244.0.3:5353", true, "node port, an endpoint that is gone"),
            ("192.0.2.10:30053", "192.0.2.10:30053", true, "node port, before the Service"),
            ("192.0.2.12:30053", "10.244.0.3:5353", false, "not a node address"),
            ("192.0.2.10:30054", "10.244.0.3:5353", false, "node port of the other family"),
            ("192.0.2.11:30053", "10.244.0.9:1", false, "the address comes before the node port"),
            ("192.0.2.11:30053", "10.244.0.1:5353", true, "the address comes before the node port"),
            ("[fd00:96::10]:53", "[fd00:244::1]:5353", false, "v6, an endpoint"),
            ("[fd00:96::10]:53", "[fd00:244::2]:5353", true, "v6, an endpoint that is gone"),
            ("[2001:db8::10]:30054", "[fd00:244::1]:5353", false, "v6 node port, an endpoint"),
            ("[2001:db8::10]:30054", "[fd00:244::2]:5353", true, "v6 node port, gone"),
            ("[2001:db8::10]:30053", "[fd00:244::2]:5353", false, "v6, node port of v4"),
        ] {
            let client = if destination.starts_with('[') { CLIENT6 } else { CLIENT };
            let entry = entry_of(UDP, client, destination, answers_from);
            assert_eq!(sweep().is_stale(&entry), stale, "{why}");
        }
    }

    #[test]
    fn no_other_protocols_and_only_the_default_zone() {
        for protocol in [6, 33, 132, 136] {
            for destination in ["10.96.0.10:53", "10.96.0.10:54"] {
                let entry = entry_of(protocol, "192.0.2.1:1", destination, "10.244.0.3:5353");
                assert!(!sweep().is_stale(&entry), "{protocol}");
            }
        }
        let entry = entry_of(UDP, "192.0.2.1:1", "10.96.0.10:53", "10.244.0.3:5353");
        assert!(sweep().is_stale(&entry));
        assert!(!sweep().is_stale(&Connection { zone: 5, ..entry }));
    }

    #[test]
    fn what_is_known_later_replaces_what_was_said_before() {
        let entry = entry_of(UDP, "192.0.2.1:1", "10.96.0.10:53", "10.244.0.3:5353");
        let mut merged = sweep();
        let grown = backends(&["10.244.0.3:5353"]);
        merged.merge(Sweep::new(
            Flows::from_iter([(at("10.96.0.10:53", Protocol::Udp), grown)]),
            BTreeSet::new(),
        ));
        assert!(!merged.is_stale(&entry));
        let other = entry_of(UDP, "192.0.2.1:1", "10.96.0.66:53", "10.244.0.3:5353");
        assert!(merged.is_stale(&other), "other frontends stay");
        let node_port = entry_of(UDP, "192.0.2.1:1", "192.0.2.10:30053", "10.244.0.3:5353");
        assert!(!merged.is_stale(&node_port), "the node's addresses are those of now");
    }

    #[test]
    fn ports_are_those_to_be_searched() {
        for (family, wanted) in [(Family::V4, [53, 30053]), (Family::V6, [53, 30054])] {
            assert!(sweep().ports(family).into_iter().eq(wanted), "{family}");
        }
        let grown = Flow { search: false, ..backends(&["10.244.0.1:5353"]) };
        let flows = Flows::from_iter([(at("10.96.0.10:53", Protocol::Udp), grown)]);
        assert!(!Sweep::new(flows, BTreeSet::new()).searches(Family::V4));
        assert!(sweep().searches(Family::V4) && sweep().searches(Family::V6));
    }
}
