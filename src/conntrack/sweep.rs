//! Which entries are stale: the decision, without the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Entry;
use crate::model::{Backend, Family, Protocol};
use crate::plan::FrontendKey;

/// Frontends whose entries are to be looked at, with what these may lead to.
///
/// An entry is stale if its client sent to one of the frontends and its answers come from
/// something that does not serve it, be it an endpoint that is gone or, for want of address
/// translation when the flow began, the frontend's own address. Only UDP: a datagram socket that
/// keeps sending would keep such an entry alive for ever. Connections of TCP and SCTP end by
/// themselves and may finish on an endpoint that takes no new ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// For each frontend all endpoints of its service port that serve, those that are terminating
    /// or left out by a policy or a hint included: flows stay where they are while they are
    /// served. None if the frontend is gone or has no endpoint. Frontends of TCP and SCTP are
    /// ignored.
    pub frontends: BTreeMap<FrontendKey, Arc<BTreeSet<Backend>>>,
    /// On which addresses the node ports are offered: in every sweep, for the latest counts when
    /// sweeps are merged. If such an address is given up, name its
    /// former frontends as [`FrontendKey::Address`]: these are looked up first, as in the rules.
    /// For the same reason a sweep of a node port must name the frontends that hide it on one of
    /// these addresses, such as an ExternalIP that is the node's own, with the same port number.
    pub node_addresses: BTreeSet<IpAddr>,
}

impl Sweep {
    /// Adds what is known later: it replaces what was said of the same frontends before.
    pub fn merge(&mut self, later: Sweep) {
        self.frontends.extend(later.frontends);
        self.node_addresses = later.node_addresses;
    }

    /// True if the entry is to be deleted.
    #[must_use]
    pub fn is_stale(&self, entry: &Entry) -> bool {
        let answers_from =
            Backend { address: entry.reply.source.ip(), port: entry.reply.source.port() };
        entry.protocol == Protocol::Udp.number()
            && !entry.zoned
            && self
                .serving(entry.original.destination)
                .is_some_and(|serving| !serving.contains(&answers_from))
    }

    /// What serves the frontend that is reached under this address; `None` if it is none of those
    /// to be looked at.
    fn serving(&self, destination: SocketAddr) -> Option<&BTreeSet<Backend>> {
        let (address, port) = (destination.ip(), destination.port());
        let by_address = FrontendKey::Address(address, Protocol::Udp, port);
        let by_node_port = || {
            self.node_addresses.contains(&address).then(|| {
                let key = FrontendKey::NodePort(Family::of(address), Protocol::Udp, port);
                self.frontends.get(&key)
            })?
        };
        self.frontends.get(&by_address).or_else(by_node_port).map(Arc::as_ref)
    }

    /// The ports of all frontends of a family.
    pub(super) fn ports(&self, family: Family) -> BTreeSet<u16> {
        self.frontends
            .keys()
            .filter(|key| key.family() == family)
            .filter_map(|key| match *key {
                FrontendKey::Address(_, Protocol::Udp, port)
                | FrontendKey::NodePort(_, Protocol::Udp, port) => Some(port),
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: u8 = 17;

    fn backends(list: &[&str]) -> Arc<BTreeSet<Backend>> {
        let backend = |text: &&str| {
            let address: SocketAddr = text.parse().expect("address:port");
            Backend { address: address.ip(), port: address.port() }
        };
        Arc::new(list.iter().map(backend).collect())
    }

    fn at(address: &str, protocol: Protocol) -> FrontendKey {
        let address: SocketAddr = address.parse().expect("address:port");
        FrontendKey::Address(address.ip(), protocol, address.port())
    }

    fn sweep() -> Sweep {
        let v4 = backends(&["10.244.0.1:5353", "10.244.0.2:5353"]);
        let v6 = backends(&["[fd00:244::1]:5353"]);
        Sweep {
            frontends: BTreeMap::from([
                (at("10.96.0.10:53", Protocol::Udp), v4.clone()),
                (at("10.96.0.10:53", Protocol::Tcp), backends(&[])),
                (at("10.96.0.10:54", Protocol::Sctp), backends(&[])),
                (at("10.96.0.66:53", Protocol::Udp), backends(&[])),
                (at("[fd00:96::10]:53", Protocol::Udp), v6.clone()),
                (FrontendKey::NodePort(Family::V4, Protocol::Udp, 30053), v4),
                (FrontendKey::NodePort(Family::V6, Protocol::Udp, 30054), v6),
                // Given up, or an ExternalIP of another service port on the same port number.
                (at("192.0.2.11:30053", Protocol::Udp), backends(&["10.244.0.9:1"])),
            ]),
            node_addresses: ["192.0.2.10", "192.0.2.11", "2001:db8::10"]
                .iter()
                .map(|a| a.parse().expect("an address"))
                .collect(),
        }
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
            ("10.96.0.11:53", "10.244.0.3:5353", false, "somebody else's address"),
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
            let entry = Entry::of(UDP, client, destination, answers_from);
            assert_eq!(sweep().is_stale(&entry), stale, "{why}");
        }
    }

    #[test]
    fn only_udp_and_only_the_default_zone() {
        for protocol in [6, 33, 132, 136] {
            for destination in ["10.96.0.10:53", "10.96.0.10:54"] {
                let entry = Entry::of(protocol, "192.0.2.1:1", destination, "10.244.0.3:5353");
                assert!(!sweep().is_stale(&entry), "{protocol}");
            }
        }
        let entry = Entry::of(UDP, "192.0.2.1:1", "10.96.0.10:53", "10.244.0.3:5353");
        assert!(sweep().is_stale(&entry));
        assert!(!sweep().is_stale(&Entry { zoned: true, ..entry }));
    }

    #[test]
    fn what_is_known_later_replaces_what_was_said_before() {
        let entry = Entry::of(UDP, "192.0.2.1:1", "10.96.0.10:53", "10.244.0.3:5353");
        let mut merged = sweep();
        let grown = backends(&["10.244.0.3:5353"]);
        merged.merge(Sweep {
            frontends: BTreeMap::from([(at("10.96.0.10:53", Protocol::Udp), grown)]),
            node_addresses: BTreeSet::new(),
        });
        assert!(!merged.is_stale(&entry));
        let other = Entry::of(UDP, "192.0.2.1:1", "10.96.0.66:53", "10.244.0.3:5353");
        assert!(merged.is_stale(&other), "other frontends stay");
        let node_port = Entry::of(UDP, "192.0.2.1:1", "192.0.2.10:30053", "10.244.0.3:5353");
        assert!(!merged.is_stale(&node_port), "the node's addresses are those of now");
    }

    #[test]
    fn ports_are_those_of_udp_in_the_family() {
        assert_eq!(sweep().ports(Family::V4), BTreeSet::from([53, 30053]));
        assert_eq!(sweep().ports(Family::V6), BTreeSet::from([53, 30054]));
        assert_eq!(Sweep::default().ports(Family::V4), BTreeSet::new());
    }
}
