//! Pictures of small clusters, without a kernel.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;
use shunt_core::model::{
    Change, Dirty, Endpoint, EndpointPort, EndpointSlice, Family, Hints, Ignored, Node, ObjectName,
    Protocol, Service, ServicePort, Store, TrafficPolicy,
};
use shunt_core::plan::{Desired, FrontendKey, Options, Pools};

use super::{Columns, Kernel, Selected, differing, picture};
use crate::commands::explain::Subject;
use crate::dataplane::{Installed, Verdict, Verdicts};
use crate::serve::history::LastChange;
use crate::serve::query::{Excerpt, Objects};
use crate::serve::status::Time;

const VIP: FrontendKey = FrontendKey::Address(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1)),
    Protocol::Tcp,
    80,
);

fn name() -> ObjectName {
    ObjectName::new("shop", "checkout")
}

fn endpoint(octet: u8, node: &str, zone: &str) -> Endpoint {
    Endpoint {
        address: [10, 244, 0, octet].into(),
        ready: true,
        serving: true,
        terminating: false,
        node: Some(node.into()),
        hints: Hints::boxed([zone.into()].into(), Box::default()),
    }
}

/// A Service with policy Local outside, whose endpoints have hints for two zones.
fn cluster() -> (Store, Desired) {
    let service = Service {
        name: name(),
        created: None,
        cluster_ips: vec![[10, 96, 0, 1].into()],
        external_ips: Vec::new(),
        load_balancer_ips: vec![[203, 0, 113, 1].into()],
        proxied_ips: Vec::new(),
        source_ranges: vec!["192.0.2.0/24".parse().expect("a prefix")],
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        affinity_seconds: Some(60),
        balancing: None,
        health_check_node_port: Some(31_000),
    };
    let slice = EndpointSlice {
        name: ObjectName::new("shop", "checkout-1"),
        service: Some("checkout".into()),
        family: Family::V4,
        weight: None,
        ports: vec![EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: vec![endpoint(1, "here", "zone-a"), endpoint(2, "there", "zone-b")],
    };
    let node = Node {
        name: "here".into(),
        addresses: vec![[192, 0, 2, 10].into()],
        pod_cidrs: Vec::new(),
        zone: Some("zone-a".into()),
        eligible: true,
    };
    let (mut store, mut dirty) = (Store::new(), Dirty::default());
    let other = Ignored::OtherProxy("mesh".into(), service.clone().into());
    for change in [
        Change::node(node),
        Change::Service(Arc::new(service)),
        Change::Slice(Arc::new(slice)),
        Change::ServiceIgnored(ObjectName::new("shop", "other"), other),
    ] {
        store.apply(change, &mut dirty);
    }
    let mut desired = Desired::new(Options::default(), "here");
    desired.update(&store, &dirty);
    (store, desired)
}

/// The verdicts as planned, with these counters of the VIP.
fn verdicts(desired: &Desired, main: u64, short_circuit: u64) -> Verdicts {
    let installed = |value, connections| Installed { exists: true, value, connections };
    let all = desired.frontends().into_iter().map(|(key, planned)| {
        let pools = Pools::ShortCircuit.verdicts();
        let exception = planned.decisions(key).find(|element| element.set == pools);
        let short_circuit = match exception {
            Some(element) => installed(element.value, short_circuit),
            None => Installed::default(),
        };
        let main = installed(planned.verdict(key).value, if key == VIP { main } else { 0 });
        (key, Verdict { main, short_circuit, label: "shop/checkout:http".into() })
    });
    all.collect()
}

#[test]
fn json_has_the_documented_fields() {
    let (store, desired) = cluster();
    let (before, now) = (verdicts(&desired, 10, 0), verdicts(&desired, 15, 2));
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
    let last = vec![(name(), LastChange { received: Time(changed), committed_after: 0.5 })];
    let excerpt = Excerpt { revision: 7, last_changes: last, ..Excerpt::default() };
    let agent = Objects { excerpt, ..Objects::default() };
    let sources = Subject { store: &store, desired: &desired, agent: Some(&agent) };
    let differing = differing(sources, &Selected::default(), &now);
    assert!(differing.is_empty(), "{differing:?}");
    let kernel = Kernel {
        verdicts: Some(&now),
        before: Some((&before, Duration::from_secs(2))),
        differing,
        connections: None,
    };
    let mut picture = picture(
        sources,
        kernel,
        &Selected { service: Some(name()), ..Selected::default() },
        vec!["old".into()],
    );
    picture.taken = Time(SystemTime::UNIX_EPOCH);
    let here = json!({
        "address": "10.244.0.1", "port": 8080, "node": "here", "local": true,
        "zoneHints": ["zone-a"], "ready": true, "terminating": false,
        "used": true, "probability": 1.0, "why": null,
    });
    let there = |why: &str| {
        json!({
            "address": "10.244.0.2", "port": 8080, "node": "there", "local": false,
            "zoneHints": ["zone-b"], "ready": true, "terminating": false,
            "used": false, "probability": 0.0, "why": why,
        })
    };
    let cluster_ip = json!({
        "service": "shop/checkout:http", "portName": "http", "kind": "ClusterIP",
        "address": "10.96.0.1", "port": 80, "protocol": "TCP", "family": "IPv4",
        "policy": "Cluster", "endpointsUsed": 1, "endpointsListed": 2,
        "newConnections": 0, "newConnectionsPerSecond": 0.0,
        "state": "ok", "reason": null, "masquerade": false, "topology": "zone",
        "loadBalancing": "random", "sessionAffinitySeconds": 60, "allowedSources": null, "shortCircuit": null,
        "endpoints": [here, there("other-zone")],
    });
    let vip = json!({
        "service": "shop/checkout:http", "portName": "http", "kind": "LoadBalancer",
        "address": "203.0.113.1", "port": 80, "protocol": "TCP", "family": "IPv4",
        "policy": "Local", "endpointsUsed": 1, "endpointsListed": 2,
        "newConnections": 17, "newConnectionsPerSecond": 3.5,
        "state": "ok", "reason": null, "masquerade": false, "topology": null,
        "loadBalancing": "random", "sessionAffinitySeconds": 60,
        "allowedSources": ["192.0.2.0/24", "203.0.113.1/32"],
        "shortCircuit": {"endpointsUsed": 1, "newConnections": 2},
        "endpoints": [here, there("not-local")],
    });
    let service = json!({
        "namespace": "shop",
        "name": "checkout",
        "internalTrafficPolicy": "Cluster",
        "externalTrafficPolicy": "Local",
        "sessionAffinitySeconds": 60,
        "sourceRanges": ["192.0.2.0/24"],
        "healthCheckNodePort": 31000,
        "lastChange": {"received": "1970-01-01T00:01:00.000000Z", "committedAfterSeconds": 0.5},
        "frontends": [cluster_ip, vip],
    });
    let wanted = json!({
        "taken": "1970-01-01T00:00:00.000000Z",
        "node": "here",
        "zone": "zone-a",
        "source": "agent",
        "revision": 7,
        "problems": ["old"],
        "services": [service],
        "ignored": [],
    });
    assert_eq!(serde_json::to_value(&picture).expect("JSON"), wanted);

    let text = picture.text(Columns { wide: true, rate: true }, true);
    for part in [
        "PROBLEM  old\n\n",
        "affinity         ClientIP, timeout 60 s\n",
        "source ranges    192.0.2.0/24\n",
        "last change      1970-01-01T00:01:00.000000Z, 0 s ago; committed 500.0ms later\n",
        "1/2            0  0.0/s  ok     by source   zone zone-a  60 s      -",
        "1/2           17  3.5/s  ok     by source   -            60 s      192.0.2.0/24,203.0.113.1/32",
        "endpoints of shop/checkout:http (LoadBalancer, IPv4)\n",
        "zone-b      ready      no: on another node, and the policy is Local\n",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn counter_that_is_smaller_than_before_counts_from_zero() {
    let (store, desired) = cluster();
    let sources = Subject { store: &store, desired: &desired, agent: None };
    let rate = |before: u64, now: u64| {
        let (before, now) = (verdicts(&desired, before, 0), verdicts(&desired, now, 0));
        let kernel = Kernel {
            verdicts: Some(&now),
            before: Some((&before, Duration::from_millis(500))),
            ..Kernel::default()
        };
        let picture = picture(sources, kernel, &Selected::default(), Vec::new());
        picture.services[0].frontends[1].new_connections_per_second
    };
    assert_eq!(rate(10, 13), Some(6.0));
    assert_eq!(rate(10, 3), Some(6.0));
}
