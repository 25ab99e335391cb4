//! Objects that the benchmarks have in common.

use std::net::Ipv4Addr;
use std::time::Duration;

use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, ObjectName, Protocol, Service,
    ServicePort, TrafficPolicy,
};
use shunt_core::plan::Options;
use shunt_testbed::Netns;

/// The dataplane of a namespace.
pub(crate) fn open(ns: &Netns) -> Dataplane {
    ns.run(|| Ok(Dataplane::open(Options::default(), "node-1", Ownership::Own)?))
        .expect("a dataplane")
}

/// The n-th Service.
pub(crate) fn service(n: u32) -> Service {
    Service {
        name: ObjectName::new("bench", format!("service-{n}")),
        created: Some(1_700_000_000),
        cluster_ips: vec![Ipv4Addr::from(0x0a60_0000 + n).into()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        proxied_ips: Vec::new(),
        source_ranges: Vec::new(),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        balancing: None,
        health_check_node_port: None,
    }
}

/// A slice whose last endpoint is another one for every `version`.
pub(crate) fn slice(n: u32, endpoints: u32, version: u32) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new("bench", format!("service-{n}-abcde")),
        service: Some(format!("service-{n}").into()),
        family: Family::V4,
        weight: None,
        ports: vec![EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: (0..endpoints)
            .map(|e| Endpoint {
                address: if e + 1 == endpoints && version > 0 {
                    Ipv4Addr::from(0x0b00_0000 + n * 16 + version).into()
                } else {
                    // The same ones, however many there are.
                    Ipv4Addr::from(0x0af4_0000 + (n * 16 + e) % 0x000b_0000).into()
                },
                ready: true,
                serving: true,
                terminating: false,
                node: Some("node-2".into()),
                hints: None,
            })
            .collect(),
    }
}

/// All objects of a cluster, listed.
pub(crate) fn load(dataplane: &mut Dataplane, (services, endpoints): (u32, u32)) {
    for n in 0..services {
        dataplane.apply(Change::service(service(n)));
        dataplane.apply(Change::slice(slice(n, endpoints, 0)));
    }
    dataplane.apply(Change::Synced);
}

/// The middle one.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
