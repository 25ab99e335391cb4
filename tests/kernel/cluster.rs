//! Objects for tests that need many of them, and the dataplane that is fed with them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::Result;
use shunt::dataplane::Dataplane;
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
    let mut dataplane = ns.run(|| Ok(Dataplane::open(Options::default(), NODE)?))?;
    changes.into_iter().for_each(|change| dataplane.apply(change));
    dataplane.apply(Change::Synced);
    Ok(dataplane)
}

/// The live ruleset in a form that can be compared: handles and counters are left out, and so are
/// the places of backends within a pool, which depend on the order of events.
pub(crate) fn live(ns: &Netns) -> Result<Vec<String>> {
    let listing = ns.output("nft", &["-j", "list", "ruleset"])?;
    let json: serde_json::Value = serde_json::from_str(&listing)?;
    let mut lines = Vec::new();
    for object in json["nftables"].as_array().into_iter().flatten() {
        let mut object = object.clone();
        if object.get("metainfo").is_some() {
            continue;
        }
        let elements = strip(&mut object);
        lines.push(object.to_string());
        lines.extend(elements);
    }
    lines.sort();
    Ok(lines)
}

fn strip(object: &mut serde_json::Value) -> Vec<String> {
    let Some((_, body)) = object.as_object_mut().and_then(|o| o.iter_mut().next()) else {
        return Vec::new();
    };
    let Some(body) = body.as_object_mut() else {
        return Vec::new();
    };
    body.remove("handle");
    let name = body.get("name").and_then(|n| n.as_str()).unwrap_or_default().to_owned();
    let elements = body.remove("elem");
    let elements = elements.as_ref().and_then(|e| e.as_array());
    elements
        .into_iter()
        .flatten()
        .map(|element| {
            let mut element = element.clone();
            for part in element.as_array_mut().into_iter().flatten() {
                if let Some(part) = part.get_mut("elem").and_then(|e| e.as_object_mut()) {
                    part.remove("counter");
                }
            }
            if name.ends_with("endpoints")
                && let Some(key) = element[0]["concat"].as_array_mut()
            {
                key.pop();
            }
            format!("{name} {element}")
        })
        .collect()
}
