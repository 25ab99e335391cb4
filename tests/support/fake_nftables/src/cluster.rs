//! Clusters for tests: objects by number, and those that are left after a sequence of changes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use shunt_core::model::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectName, Protocol, Service,
    ServicePort, TrafficPolicy,
};

/// The name of the node that the dataplane is on.
pub const NODE: &str = "node-1";

/// The name of the n-th Service.
#[must_use]
pub fn name(n: u16) -> ObjectName {
    ObjectName::new("default", format!("service-{n}"))
}

/// A dual-stack Service with a ClusterIP, a NodePort and an ExternalIP of its own.
#[must_use]
pub fn service(n: u16) -> Service {
    let [high, low] = n.to_be_bytes();
    Service {
        name: name(n),
        created: Some(1_700_000_000 + i64::from(n)),
        cluster_ips: vec![
            Ipv4Addr::new(10, 96, high, low).into(),
            Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, n).into(),
        ],
        external_ips: vec![Ipv4Addr::new(198, 51, high, low).into()],
        load_balancer_ips: Vec::new(),
        proxied_ips: Vec::new(),
        source_ranges: Vec::new(),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30_000 + n),
        }],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        balancing: None,
        health_check_node_port: None,
    }
}

/// A slice of the n-th Service with these endpoints, the even ones of which are on our node.
#[must_use]
pub fn slice(n: u16, family: Family, endpoints: &[u16]) -> EndpointSlice {
    let address = |e: u16| -> IpAddr {
        let [high, low] = e.to_be_bytes();
        match family {
            Family::V4 => Ipv4Addr::new(10, 244, high, low).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, e).into(),
        }
    };
    EndpointSlice {
        name: ObjectName::new("default", format!("service-{n}-{family}")),
        service: Some(name(n).name),
        family,
        weight: None,
        ports: vec![EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: endpoints
            .iter()
            .map(|e| Endpoint {
                address: address(*e),
                ready: true,
                serving: true,
                terminating: false,
                node: Some(Arc::from(if e % 2 == 0 { NODE } else { "node-2" })),
                hints: None,
            })
            .collect(),
    }
}

/// What a source would list after the changes so far, with what is remembered of the Node.
#[derive(Debug, Clone, Default)]
pub struct Objects(BTreeMap<(&'static str, ObjectName), Change>);

impl Objects {
    /// Takes in a change.
    pub fn apply(&mut self, change: &Change) {
        let nameless = ObjectName::new("", "");
        let (kind, name, gone) = match change {
            Change::Service(service) => ("Service", service.name.clone(), false),
            Change::ServiceIgnored(name, _) => ("Service", name.clone(), true),
            Change::Slice(slice) => ("EndpointSlice", slice.name.clone(), false),
            Change::Node(_) => ("Node", nameless, false),
            // What was known of the Node stays in force.
            Change::Gone(Kind::Node, _) | Change::NodeRemembered(_) => return,
            Change::Gone(kind, name) => (kind.as_str(), name.clone(), true),
            Change::ServiceCidr(name, _) => ("ServiceCIDR", name.clone(), false),
            Change::InterfaceAddresses(_) => ("addresses", nameless, false),
            Change::Listed(Kind::Node, _) => return,
            Change::Listed(listed, names) => {
                return self
                    .0
                    .retain(|(kind, name), _| *kind != listed.as_str() || names.contains(name));
            }
            Change::Synced => return,
        };
        if gone {
            self.0.remove(&(kind, name));
            return;
        }
        let mut change = change.clone();
        let key = (kind, name);
        if let (Change::Node(node), Some(Change::Node(known))) = (&mut change, self.0.get(&key)) {
            node.keep_missing(known);
        }
        self.0.insert(key, change);
    }

    /// The objects, with the word that these are all.
    pub fn listed(&self) -> impl Iterator<Item = Change> {
        self.0.values().cloned().chain([Change::Synced])
    }
}
