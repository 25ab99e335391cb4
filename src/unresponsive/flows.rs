//! The flows to some endpoints, from connection tracking.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use foldhash::{HashMap, HashSet};
use nfnetlink::Error;
use nfnetlink::conntrack::{Conntrack, Entry, Filter};
use shunt_core::model::Family;

/// The kernel's identifier of an entry.
pub(super) type FlowId = [u8; 4];

/// The flows to look for.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    /// The endpoints that may not answer.
    pub(super) endpoints: BTreeSet<SocketAddr>,
    /// The other backends of their pools.
    pub(super) siblings: BTreeSet<SocketAddr>,
    /// The clients that wait for an answer.
    pub(super) clients: BTreeSet<IpAddr>,
}

/// The found flows.
#[derive(Debug, Clone, Default)]
pub(super) struct Flows {
    /// The flows to each endpoint. Endpoints without a flow are missing.
    pub(super) endpoints: HashMap<SocketAddr, EndpointFlows>,
    /// The waiting clients that a backend has answered, by backend.
    pub(super) served: HashMap<SocketAddr, HashSet<IpAddr>>,
    /// The clients that connect to a backend itself, as the agent does from an address of this node.
    pub(super) direct: HashSet<IpAddr>,
}

/// The flows to one endpoint.
#[derive(Debug, Clone, Default)]
pub(super) struct EndpointFlows {
    /// The flows that the endpoint has answered.
    pub(super) answered: HashSet<FlowId>,
    /// Those of them that came through a Service.
    pub(super) answered_clients: HashSet<FlowId>,
    /// The clients of half-open connections.
    pub(super) waiting: BTreeSet<IpAddr>,
}

impl Flows {
    /// Lists all TCP flows of these families once, whatever the number of endpoints.
    ///
    /// # Errors
    /// If the kernel refuses the listing.
    pub(super) fn list(
        conntrack: &mut Conntrack,
        families: &[Family],
        wanted: &Wanted,
    ) -> Result<Flows, Error> {
        let mut flows = Flows::default();
        for family in families {
            let kind = match family {
                Family::V4 => nfnetlink::Family::Ip,
                Family::V6 => nfnetlink::Family::Ip6,
            };
            if wanted.endpoints.iter().any(|it| Family::of(it.ip()) == *family) {
                let tcp = Filter { protocol: TCP, port: None, unanswered: false };
                conntrack.list(kind, &[tcp], |entry| flows.add(wanted, &entry))?;
            }
        }
        Ok(flows)
    }

    pub(super) fn add(&mut self, wanted: &Wanted, entry: &Entry) {
        if entry.protocol != TCP {
            return;
        }
        let (backend, client) = (entry.reply.source, entry.original.source.ip());
        if wanted.endpoints.contains(&backend) {
            let flows = self.endpoints.entry(backend).or_default();
            if entry.replied {
                flows.answered.insert(entry.id);
                if entry.is_translated() {
                    flows.answered_clients.insert(entry.id);
                }
            } else if entry.half_open && entry.is_translated() {
                flows.waiting.insert(client);
            }
        }
        let is_endpoint = wanted.endpoints.contains(&backend);
        if !is_endpoint && !wanted.siblings.contains(&backend) {
            return;
        }
        if !entry.is_translated() {
            self.direct.insert(client);
        } else if entry.replied && wanted.clients.contains(&client) {
            // No policy blocks a pod from itself, nor a node from its own pods.
            let is_masqueraded = entry.reply.destination.ip() != client;
            if client != backend.ip() && (is_endpoint || !is_masqueraded) {
                self.served.entry(backend).or_default().insert(client);
            }
        }
    }
}

const TCP: u8 = libc::IPPROTO_TCP as u8;

#[cfg(test)]
mod tests {
    use nfnetlink::conntrack::Tuple;

    use super::*;

    fn entry(client: &str, to: &str, backend: &str, half_open: bool, id: u8) -> Entry {
        let parse = |text: &str| -> SocketAddr { text.parse().expect("address:port") };
        let original = Tuple { source: parse(client), destination: parse(to) };
        let reply = Tuple { source: parse(backend), destination: parse(client) };
        let id = [0, 0, 0, id];
        Entry { protocol: TCP, original, reply, zoned: false, replied: !half_open, half_open, id }
    }

    #[test]
    fn flows_are_counted_by_what_they_show() {
        let (dead, sibling) = ("10.244.1.1:8080", "10.244.0.2:8080");
        let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let wanted = Wanted {
            endpoints: [dead.parse().expect("address:port")].into(),
            siblings: [sibling.parse().expect("address:port")].into(),
            clients: ["10.244.0.2", "10.244.0.3", "192.0.2.10"].map(address).into(),
        };
        let vip = "10.96.0.1:80";
        let mut flows = Flows::default();
        for entry in [
            entry("10.244.0.3:1", vip, dead, true, 1),
            entry("10.244.0.3:2", vip, sibling, false, 2),
            // A pod reaches itself.
            entry("10.244.0.2:1", vip, sibling, false, 3),
            // The agent's own probes.
            entry("192.0.2.10:1", dead, dead, true, 4),
            entry("192.0.2.10:2", sibling, sibling, false, 5),
            // A client that does not wait, and an address that is no backend.
            entry("10.244.0.9:1", vip, sibling, false, 6),
            entry("10.244.0.3:3", vip, "10.244.0.8:8080", false, 7),
            // An answer is an answer, with or without translation.
            entry("10.244.0.9:2", dead, dead, false, 8),
            Entry { protocol: 17, ..entry("10.244.0.3:4", vip, dead, false, 9) },
            // Picked up in the middle: the client still sends, and gets no reply.
            Entry { replied: false, ..entry("10.244.0.7:1", vip, dead, false, 12) },
            Entry { replied: false, ..entry("10.244.0.2:2", vip, dead, false, 13) },
        ] {
            flows.add(&wanted, &entry);
        }
        let of_dead = &flows.endpoints[&dead.parse().expect("address:port")];
        assert_eq!(of_dead.waiting, [address("10.244.0.3")].into());
        assert_eq!(of_dead.answered, HashSet::from_iter([[0, 0, 0, 8]]));
        assert_eq!(of_dead.answered_clients, HashSet::default());
        assert_eq!(flows.direct, HashSet::from_iter(["192.0.2.10", "10.244.0.9"].map(address)));
        // Masqueraded, so that the sibling sees this node.
        let mut masqueraded = entry("192.0.2.10:4", vip, sibling, false, 11);
        masqueraded.reply.destination = "10.244.0.1:4".parse().expect("address:port");
        flows.add(&wanted, &masqueraded);
        // Before it died.
        flows.add(&wanted, &entry("10.244.0.3:5", vip, dead, false, 10));
        let mut served: Vec<_> = flows.served.into_iter().collect();
        served.sort_unstable_by_key(|(backend, _)| *backend);
        let client = || HashSet::from_iter([address("10.244.0.3")]);
        let backend = |text: &str| text.parse().expect("address:port");
        assert_eq!(served, [(backend(sibling), client()), (backend(dead), client())]);
    }
}
