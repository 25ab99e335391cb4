//! Node ports on the node's loopback addresses.
//!
//! The kernel routes no packet from a loopback address to another host, so no rule can translate
//! these connections. A proxy in the agent accepts them, for TCP. This module has the configuration
//! of that proxy, and its view of a frontend.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::{Desired, FrontendKey, NodeContext, hash_index};
use crate::model::{Backend, Balancing, Family, ObjectName, Protocol};

/// Returns the loopback address of a family on which the proxy listens.
#[must_use]
pub fn loopback_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Returns family and number of a node port that the proxy can serve.
fn node_port(key: FrontendKey) -> Option<(Family, u16)> {
    match key {
        FrontendKey::NodePort(family, Protocol::Tcp, port) => Some((family, port)),
        _ => None,
    }
}

/// A node port with endpoints, as a client on the node's loopback address uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopbackPort {
    /// The Service that owns the node port.
    pub service: ObjectName,
    /// The backends, each as often as its share is: with policy Local those of the node (KEP-6032).
    /// Never empty.
    pub pool: Arc<[Backend]>,
    /// The timeout of session affinity in seconds; `None` without session affinity.
    pub affinity: Option<u32>,
}

/// Changes of node ports on loopback addresses, by family and port; `None` for a port that the proxy
/// must not serve any more.
pub type LoopbackChanges = BTreeMap<(Family, u16), Option<LoopbackPort>>;

impl Desired {
    /// Takes the changes of node ports on loopback addresses since the last call.
    pub fn take_loopback(&mut self) -> LoopbackChanges {
        let touched = std::mem::take(&mut self.loopback).into_iter();
        touched.map(|port| (port, self.loopback_port(port))).collect()
    }

    /// Returns a port for the proxy; `None` if the proxy must not serve it.
    pub(crate) fn loopback_port(&self, (family, port): (Family, u16)) -> Option<LoopbackPort> {
        let key = FrontendKey::NodePort(family, Protocol::Tcp, port);
        self.node_context().filter(|context| context.knows_node())?;
        let frontend = self.frontend(key).filter(|_| self.has_loopback(family))?;
        let pool = frontend.main_pool()?;
        Some(LoopbackPort {
            service: self.service_of(key)?.clone(),
            pool: match frontend.balancing {
                Balancing::SourceHash => self.slot_of_node(family, pool),
                // The source port is not known yet.
                Balancing::Random | Balancing::SourceAndPortHash => pool.clone(),
            },
            affinity: frontend.affinity,
        })
    }

    /// Returns the slot of a hash table for the node's own address, which endpoints see as the client.
    /// The loopback address is the same on every node, and would choose the same endpoint on all.
    fn slot_of_node(&self, family: Family, pool: &Arc<[Backend]>) -> Arc<[Backend]> {
        let client = self.node_context().and_then(|context| context.node_address(family));
        let slot = client.and_then(|client| {
            let count = u32::try_from(pool.len()).unwrap_or(u32::MAX);
            pool.get(hash_index(client, count) as usize)
        });
        slot.map_or_else(|| pool.clone(), |backend| [*backend].into())
    }

    fn has_loopback(&self, family: Family) -> bool {
        self.options.node_port_addresses.has_loopback(family)
    }

    /// Notes changed frontends.
    pub(super) fn note_loopback(&mut self, keys: &[FrontendKey]) {
        let ports = keys.iter().filter_map(|key| node_port(*key));
        let ports: Vec<_> = ports.filter(|(family, _)| self.has_loopback(*family)).collect();
        self.loopback.extend(ports);
    }

    /// Notes all ports, if other families have node ports on their loopback addresses by the new options.
    pub(super) fn note_loopback_options(&mut self, new: &NodeContext) {
        let wanted = |it: &NodeContext| {
            let addresses = &it.options.node_port_addresses;
            Family::ALL.map(|family| it.knows_node() && addresses.has_loopback(family))
        };
        if self.node_context().map(|old| wanted(old)).unwrap_or_default() != wanted(new) {
            let keys = self.plans.values().flat_map(|plan| &plan.frontends).map(|(key, _)| *key);
            self.loopback.extend(keys.filter_map(node_port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Change, Dirty, Endpoint, EndpointPort, EndpointSlice, Kind, Service, ServicePort, Store,
        TrafficPolicy,
    };
    use crate::plan::{NodePortAddresses, Options};

    const PORT: (Family, u16) = (Family::V4, 30_080);

    struct World {
        store: Store,
        desired: Desired,
    }

    impl World {
        fn new(v4: bool) -> World {
            World { store: Store::new(), desired: Desired::new(options(v4), "here") }
        }

        fn change(&mut self, change: Change) -> LoopbackChanges {
            let mut dirty = Dirty::default();
            self.store.apply(change, &mut dirty);
            self.desired.update(&self.store, &dirty);
            self.desired.take_loopback()
        }

        fn configure(&mut self, v4: bool) -> LoopbackChanges {
            self.desired.configure(options(v4), "here");
            let dirty = Dirty { node_context: true, ..Dirty::default() };
            self.desired.update(&self.store, &dirty);
            self.desired.take_loopback()
        }
    }

    fn options(v4: bool) -> Options {
        let nets = if v4 { vec!["127.0.0.0/8".parse().expect("a prefix")] } else { Vec::new() };
        let node_port_addresses = NodePortAddresses { primary: true, nets };
        Options { node_port_addresses, ..Options::default() }
    }

    fn service(external_policy: TrafficPolicy, affinity_seconds: Option<u32>) -> Change {
        let port = |name: &str, protocol, port, node_port| ServicePort {
            name: name.into(),
            protocol,
            port,
            node_port: Some(node_port),
        };
        Change::service(Service {
            name: ObjectName::new("shop", "web"),
            created: None,
            cluster_ips: vec![[10, 96, 0, 1].into()],
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            proxied_ips: Vec::new(),
            source_ranges: Vec::new(),
            ports: vec![
                port("tcp", Protocol::Tcp, 80, PORT.1),
                port("udp", Protocol::Udp, 53, 30_053),
            ],
            internal_policy: TrafficPolicy::Cluster,
            external_policy,
            affinity_seconds,
            balancing: None,
            health_check_node_port: None,
        })
    }

    fn slice(octets: &[u8]) -> Change {
        let endpoint = |octet: &u8| Endpoint {
            address: [10, 244, 0, *octet].into(),
            ready: true,
            serving: true,
            terminating: false,
            node: Some("there".into()),
            hints: None,
        };
        let port = |name: &str, protocol| EndpointPort { name: name.into(), protocol, port: 8080 };
        Change::slice(EndpointSlice {
            name: ObjectName::new("shop", "web-1"),
            service: Some("web".into()),
            family: Family::V4,
            weight: None,
            ports: vec![port("tcp", Protocol::Tcp), port("udp", Protocol::Udp)],
            endpoints: octets.iter().map(endpoint).collect(),
        })
    }

    fn pool(changes: &LoopbackChanges) -> Option<usize> {
        assert_eq!(changes.keys().collect::<Vec<_>>(), [&PORT]);
        changes[&PORT].as_ref().map(|port| port.pool.len())
    }

    #[test]
    fn only_changes_of_tcp_node_ports_are_passed_on() {
        let mut world = World::new(true);
        assert_eq!(pool(&world.change(service(TrafficPolicy::Cluster, None))), None);
        assert_eq!(pool(&world.change(slice(&[1, 2]))), Some(2));
        assert!(world.change(slice(&[1, 2])).is_empty());
        let sticky = world.change(service(TrafficPolicy::Cluster, Some(60)));
        assert_eq!(sticky[&PORT].as_ref().and_then(|port| port.affinity), Some(60));
        assert_eq!(pool(&world.change(slice(&[]))), None);
        assert_eq!(pool(&world.change(slice(&[3]))), Some(1));
        let name = ObjectName::new("shop", "web");
        assert_eq!(pool(&world.change(Change::Gone(Kind::Service, name))), None);
    }

    #[test]
    fn loopback_prefix_beside_primary_changes_no_other_address() {
        let net = |text: &str| text.parse().expect("a prefix");
        let loopback = || vec![net("127.0.0.0/8"), net("::1/128")];
        let selected = |addresses, node_address: Option<IpAddr>| {
            let options =
                Options { node_port_addresses: addresses, node_address, ..Options::default() };
            let own = ["127.0.0.1", "192.0.2.10", "192.0.2.11", "::1", "2001:db8::1"];
            let context = NodeContext {
                options,
                node_name: "here".to_owned(),
                node: None,
                interface_addresses: own.map(|it| it.parse().expect("an address")).into(),
                service_cidrs: Vec::new(),
            };
            Family::ALL.map(|family| context.node_port_addresses(family))
        };
        for known in [None, Some([192, 0, 2, 10].into())] {
            let both = selected(NodePortAddresses { primary: true, nets: loopback() }, known);
            assert_eq!(both, selected(NodePortAddresses::default(), known));
        }
        let none = [Some(Default::default()), Some(Default::default())];
        let only = NodePortAddresses { primary: false, nets: loopback() };
        assert_eq!(selected(only, None), none);
        let more = NodePortAddresses { primary: true, nets: vec![net("192.0.2.11/32")] };
        let all = [[192, 0, 2, 10], [192, 0, 2, 11]].map(IpAddr::from);
        assert_eq!(selected(more, Some(all[0])), [Some(all.into()), None]);
    }

    #[test]
    fn by_the_hash_of_its_address_the_node_has_one_endpoint() {
        let mut world = World::new(true);
        let node_address = Some([192, 0, 2, 1].into());
        let options = Options { balancing: Balancing::SourceHash, node_address, ..options(true) };
        world.desired.configure(options, "here");
        world.change(slice(&[1, 2, 3]));
        assert_eq!(pool(&world.change(service(TrafficPolicy::Cluster, None))), Some(1));
    }

    #[test]
    fn changed_options_pass_all_ports_on() {
        let mut world = World::new(false);
        world.change(slice(&[1]));
        assert!(world.change(service(TrafficPolicy::Cluster, None)).is_empty());
        for _ in 0..2 {
            assert_eq!(pool(&world.configure(true)), Some(1));
            assert!(world.configure(true).is_empty());
            assert_eq!(pool(&world.configure(false)), None);
        }
    }
}
