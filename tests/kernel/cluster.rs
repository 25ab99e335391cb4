//! Objects for tests that need many of them, and the dataplane that is fed with them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::Result;
use shunt::dataplane::{Dataplane, Ownership};
use shunt::model::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, ObjectName, Protocol, Service,
    ServicePort, TrafficPolicy,
};
use shunt::plan::Options;
use shunt_lab::Netns;

pub(crate) const NODE: &str = "node-1";

/// The name of the n-th Service.
pub(crate) fn name(n: u16) -> ObjectName {
    ObjectName::new("default", format!("service-{n}"))
}

/// A dual-stack Service with a ClusterIP, a NodePort and an ExternalIP of its own.
pub(crate) fn service(n: u16) -> Service {
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
        health_check_node_port: None,
        origin: None,
    }
}

/// A slice of the n-th Service with these endpoints, the first of which is on our node.
pub(crate) fn slice(n: u16, family: Family, endpoints: &[u16]) -> EndpointSlice {
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
        ports: vec![EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: endpoints
            .iter()
            .map(|e| Endpoint {
                address: address(*e),
                ready: true,
                serving: true,
                terminating: false,
                node: Some(Arc::from(if e % 2 == 0 { NODE } else { "node-2" })),
                zone_hints: Box::default(),
                node_hints: Box::default(),
            })
            .collect(),
    }
}

/// A dataplane of that namespace that was fed with these changes but has not synced yet.
pub(crate) fn dataplane(ns: &Netns, changes: Vec<Change>) -> Result<Dataplane> {
    let mut dataplane =
        ns.run(|| Ok(Dataplane::open(Options::default(), NODE, Ownership::Share)?))?;
    changes.into_iter().for_each(|change| dataplane.apply(change));
    dataplane.apply(Change::Synced);
    Ok(dataplane)
}
