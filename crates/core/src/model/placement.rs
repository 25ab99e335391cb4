//! The pools of single endpoints: which other backends take connections of the same Services.

use std::collections::{BTreeMap, BTreeSet};

use super::{Backend, Family, Locality, Protocol, Store, select};

/// The maximum number of siblings of an endpoint, evenly taken from its pools.
const MAX_SIBLINGS: usize = 64;

/// The neighbourhood of a TCP endpoint that connections of this node may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// True if the endpoint is on this node.
    pub is_local: bool,
    /// The other backends of its pools, each with true if it is on this node. Of large pools only
    /// some.
    pub siblings: BTreeMap<Backend, bool>,
}

/// Returns the placements of those backends that are TCP endpoints in a pool of this node.
#[must_use]
pub fn placements(
    store: &Store,
    locality: Locality<'_>,
    wanted: &BTreeSet<Backend>,
) -> BTreeMap<Backend, Placement> {
    let mut placements: BTreeMap<Backend, Placement> = BTreeMap::new();
    let addresses: BTreeSet<_> = wanted.iter().map(|backend| backend.address).collect();
    for service in store.services() {
        let slices = || store.slices(&service.name);
        // Most Services have none of them.
        if !slices().flat_map(|slice| &slice.endpoints).any(|it| addresses.contains(&it.address)) {
            continue;
        }
        for port in service.ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
            for family in Family::ALL {
                let selection = select(slices(), port, family, locality);
                let is_local = |backend: &Backend| {
                    selection.local_addresses.binary_search(&backend.address).is_ok()
                };
                for pool in [&selection.cluster, &selection.local] {
                    let step = pool.len().div_ceil(MAX_SIBLINGS).max(1);
                    for backend in pool.iter().filter(|backend| wanted.contains(backend)) {
                        let placement = placements.entry(*backend).or_default();
                        placement.is_local = is_local(backend);
                        let siblings = pool.iter().step_by(step).filter(|it| *it != backend);
                        placement.siblings.extend(siblings.map(|it| (*it, is_local(it))));
                    }
                }
            }
        }
    }
    placements
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Change, Dirty, Endpoint, EndpointPort, EndpointSlice, ObjectName, Service, ServicePort,
        TrafficPolicy,
    };

    fn backend(octet: u8) -> Backend {
        Backend { address: std::net::Ipv4Addr::new(10, 244, 0, octet).into(), port: 8080 }
    }

    #[test]
    fn siblings_come_from_all_services_of_an_endpoint() {
        let mut store = Store::new();
        let port = |protocol| ServicePort { name: "".into(), protocol, port: 80, node_port: None };
        for (name, protocol, octets) in [
            ("a", Protocol::Tcp, &[1, 2][..]),
            ("b", Protocol::Tcp, &[2, 3]),
            ("c", Protocol::Tcp, &[4, 5]),
            ("d", Protocol::Udp, &[1, 6]),
        ] {
            let service = Service {
                name: ObjectName::new("default", name),
                created: None,
                cluster_ips: Vec::new(),
                external_ips: Vec::new(),
                load_balancer_ips: Vec::new(),
                proxied_ips: Vec::new(),
                source_ranges: Vec::new(),
                ports: vec![port(protocol)],
                internal_policy: TrafficPolicy::Cluster,
                external_policy: TrafficPolicy::Cluster,
                affinity_seconds: None,
                balancing: None,
                health_check_node_port: None,
            };
            let endpoint = |octet: &u8| Endpoint {
                address: backend(*octet).address,
                ready: true,
                serving: true,
                terminating: false,
                node: Some(if *octet == 3 { "here" } else { "there" }.into()),
                hints: None,
            };
            let slice = EndpointSlice {
                name: ObjectName::new("default", format!("{name}-1")),
                service: Some(name.into()),
                family: Family::V4,
                weight: None,
                ports: [EndpointPort { name: "".into(), protocol, port: 8080 }].into(),
                endpoints: octets.iter().map(endpoint).collect(),
            };
            let mut dirty = Dirty::default();
            store.apply(Change::service(service), &mut dirty);
            store.apply(Change::slice(slice), &mut dirty);
        }
        let locality = Locality { node: "here", zone: None };
        let found = placements(&store, locality, &[2, 3, 6, 9].map(backend).into());
        let siblings =
            |of: &[(u8, bool)]| of.iter().map(|(n, here)| (backend(*n), *here)).collect();
        let expected = BTreeMap::from([
            (
                backend(2),
                Placement { is_local: false, siblings: siblings(&[(1, false), (3, true)]) },
            ),
            (backend(3), Placement { is_local: true, siblings: siblings(&[(2, false)]) }),
        ]);
        assert_eq!(found, expected);
    }
}
