//! Which endpoints count.

use std::time::Duration;

use anyhow::{Result, ensure};
use shunt_fake_apiserver::{Key, Kind, Kubernetes};
use shunt_testbed::{EndpointSlice, Host, Protocol};

use crate::exceptions::LEFT;
use crate::frontends::{READY, full, slices, slices_with};
use crate::world::{CLUSTER_CIDR, World};

const UNREADY: &str = "conditions: {ready: false, serving: false, terminating: false}";
const SERVING_ONLY: &str = "conditions: {ready: false, serving: true, terminating: false}";
const TERMINATING: &str = "conditions: {ready: false, serving: true, terminating: true}";
const DYING: &str = "conditions: {ready: false, serving: false, terminating: true}";
/// As with `publishNotReadyAddresses`.
const PUBLISHED: &str = "conditions: {ready: true, serving: true, terminating: true}";
const PUBLISHED_DYING: &str = "conditions: {ready: true, serving: false, terminating: true}";
const NOTHING: &str = "conditions: {}";

/// The pairs of internal and external policies, with the numbers of their Services.
pub(crate) const POLICIES: [(u8, &str, &str); 4] = [
    (1, "Cluster", "Cluster"),
    (2, "Local", "Local"),
    (3, "Cluster", "Local"),
    (4, "Local", "Cluster"),
];

/// One Service for each pair of policies.
fn put_policies(world: &World<'_>, more: &str) -> Result<()> {
    for (number, internal, external) in POLICIES {
        let service = full(&format!("s{number}"), number)
            .spec(&format!("internalTrafficPolicy: {internal}"))
            .spec(&format!("externalTrafficPolicy: {external}"));
        world.put(if more.is_empty() { service } else { service.spec(more) })?;
    }
    Ok(())
}

fn put_endpoints(world: &World<'_>, endpoints: &[(&Host, &str)]) -> Result<()> {
    for (number, ..) in POLICIES {
        world.put(slices_with(&format!("s{number}"), endpoints))?;
    }
    Ok(())
}

/// A client stays where it is, also if it is the node or a pod that is no endpoint itself.
pub(crate) fn session_affinity(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    put_policies(&world, "sessionAffinity: ClientIP")?;
    let steps: [&[&Host]; 6] = [
        &[&lab.pod1, &lab.pod2, &lab.pod3],
        &[&lab.pod2, &lab.pod3],
        &[&lab.pod3],
        &[&lab.pod1, &lab.pod3],
        &[],
        &[&lab.pod2],
    ];
    for hosts in steps {
        let endpoints: Vec<_> = hosts.iter().map(|host| (*host, READY)).collect();
        put_endpoints(&world, &endpoints)?;
        world.compare(&format!("{} endpoints", hosts.len()))?;
    }
    put_policies(&world, "sessionAffinity: None")?;
    world.compare("no affinity any more")?;
    Ok(())
}

/// Ready, serving, terminating, and what counts when nothing is ready.
pub(crate) fn conditions(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    put_policies(&world, "")?;
    let (a, b, c) = (&lab.pod1, &lab.pod2, &lab.pod3);
    let steps: [&[(&Host, &str)]; 12] = [
        &[(a, READY), (b, UNREADY), (c, READY)],
        &[(a, TERMINATING), (b, UNREADY), (c, READY)],
        &[(a, TERMINATING), (b, READY), (c, TERMINATING)],
        &[(a, TERMINATING), (b, DYING), (c, TERMINATING)],
        &[(a, UNREADY), (b, DYING), (c, TERMINATING)],
        &[(a, SERVING_ONLY), (b, DYING), (c, SERVING_ONLY)],
        &[(a, DYING), (b, UNREADY), (c, DYING)],
        &[(a, PUBLISHED), (b, UNREADY), (c, READY)],
        &[(a, PUBLISHED_DYING), (b, TERMINATING), (c, DYING)],
        &[(a, NOTHING), (b, TERMINATING), (c, UNREADY)],
        &[(a, SERVING_ONLY), (b, TERMINATING), (c, NOTHING)],
        &[],
    ];
    for endpoints in steps {
        put_endpoints(&world, endpoints)?;
        let fields: Vec<&str> = endpoints.iter().map(|(_, fields)| *fields).collect();
        world.compare(&fields.join(" "))?;
    }
    Ok(())
}

/// Hints of zones and nodes, and the node's own zone.
pub(crate) fn hints(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    put_policies(&world, "")?;
    let (a, b, c) = (&lab.pod1, &lab.pod2, &lab.pod3);
    let zone_a = "conditions: {ready: true}, hints: {forZones: [{name: a}]}";
    let zone_b = "conditions: {ready: true}, hints: {forZones: [{name: b}]}";
    let zone_ab = "hints: {forZones: [{name: a}, {name: b}]}";
    let node_1 = "hints: {forNodes: [{name: node-1}], forZones: [{name: b}]}";
    let node_2 = "hints: {forNodes: [{name: node-2}], forZones: [{name: a}]}";
    let unready_a = "conditions: {ready: false}, hints: {forZones: [{name: a}]}";
    let terminating_a = "conditions: {ready: false, serving: true, terminating: true}, \
        hints: {forZones: [{name: a}]}";
    let empty = "hints: {forZones: []}";
    let steps: [&[(&Host, &str)]; 11] = [
        &[(a, zone_a), (b, zone_b), (c, zone_a)],
        &[(a, zone_b), (b, zone_b), (c, zone_a)],
        &[(a, zone_ab), (b, zone_b), (c, zone_ab)],
        &[(a, zone_a), (b, READY), (c, zone_a)],
        &[(a, zone_a), (b, UNREADY), (c, zone_b)],
        &[(a, unready_a), (b, zone_b), (c, zone_b)],
        &[(a, terminating_a), (b, zone_b), (c, zone_b)],
        &[(a, node_1), (b, node_2), (c, node_2)],
        &[(a, node_2), (b, node_2), (c, node_2)],
        &[(a, node_1), (b, zone_a), (c, zone_b)],
        &[(a, zone_a), (b, empty), (c, zone_b)],
    ];
    for (zone, every) in [(Some("a"), 1), (None, 3), (Some("b"), 3), (Some("c"), 5)] {
        world.set_zone(zone)?;
        for (step, endpoints) in steps.iter().enumerate().step_by(every) {
            put_endpoints(&world, endpoints)?;
            world.compare(&format!("zone {zone:?}, step {step}"))?;
        }
    }
    Ok(())
}

/// A slice for each family.
fn put_slice(world: &World<'_>, name: &str, endpoints: &[(&Host, &str)]) -> Result<()> {
    for family in ["v4", "v6"] {
        let slice = if family == "v4" { EndpointSlice::v4("s1") } else { EndpointSlice::v6("s1") };
        let slice = slice.name(&format!("{name}-{family}")).port("tcp", Protocol::Tcp, 8080).port(
            "udp",
            Protocol::Udp,
            8080,
        );
        world
            .put(endpoints.iter().fold(slice, |slice, (host, fields)| slice.host(host, fields)))?;
    }
    Ok(())
}

fn slices_come_and_go(world: &World<'_>) -> Result<()> {
    let lab = &world.shunt.lab;
    let (a, b, c) = (&lab.pod1, &lab.pod2, &lab.pod3);
    put_slice(world, "x", &[(a, READY), (b, READY)])?;
    put_slice(world, "y", &[(b, READY), (c, READY)])?;
    world.compare("the same in two slices")?;
    put_slice(world, "x", &[(a, TERMINATING), (b, TERMINATING)])?;
    put_slice(world, "y", &[(a, READY)])?;
    world.compare("terminating in one, ready in the other")?;
    put_slice(world, "y", &[(a, UNREADY), (c, DYING)])?;
    world.compare("terminating in one, not ready in the other")?;
    put_slice(world, "y", &[])?;
    world.compare("a slice without endpoints")?;
    for family in ["v4", "v6"] {
        let key = Key::new(Kind::EndpointSlice, &format!("x-{family}"));
        world.kubernetes.delete(&key)?;
    }
    world.compare("a slice has gone").map(drop)
}

/// Two pods on one bridge, whose answers to each other pass the node's NAT or do not.
pub(crate) fn pods_on_one_bridge(kubernetes: &Kubernetes) -> Result<()> {
    const BRIDGE: &str = "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}\n";
    for (settings, filtered) in [(CLUSTER_CIDR, false), (CLUSTER_CIDR, true), (BRIDGE, true)] {
        kubernetes.clear()?;
        let world = World::configured(kubernetes, settings)?;
        for side in world.sides() {
            side.lab.put_pods_on_bridge(filtered)?;
        }
        put_policies(&world, "")?;
        let lab = &world.shunt.lab;
        for hosts in [&[&lab.pod1, &lab.pod2][..], &[&lab.pod2, &lab.pod3]] {
            let endpoints: Vec<_> = hosts.iter().map(|host| (*host, READY)).collect();
            put_endpoints(&world, &endpoints)?;
            world.compare(&format!("{settings:?}, filtered: {filtered}, {} ", hosts.len()))?;
        }
        // Without the node's NAT, a neighbour's answer is from an address that pod-1 never asked.
        for side in world.sides() {
            for to in ["10.96.1.1:80", "[fd00:96::1:1]:80"] {
                let probe = side.lab.from(&side.lab.pod1).probe(Protocol::Tcp, to);
                let tally = probe.tally(64, Duration::from_millis(20))?;
                let answered = tally.reached("pod-2:8080") > 0;
                ensure!(answered == filtered, "{}: {to}, filtered: {filtered}: {tally}", side.name);
            }
        }
    }
    Ok(())
}

/// Several slices, with the same endpoints in them; slices that come and go.
pub(crate) fn several_slices(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    put_policies(&world, "")?;
    slices_come_and_go(&world)?;
    // Slices outlive their Service, and come before it.
    let lab = &world.shunt.lab;
    put_slice(&world, "x", &[(&lab.pod1, READY), (&lab.pod3, READY)])?;
    kubernetes.delete(&Key::new(Kind::Service, "s1"))?;
    world.compare("a Service has gone")?;
    put_policies(&world, "")?;
    world.compare("a Service has come back")?;
    Ok(())
}

/// Endpoints that are the nodes themselves.
pub(crate) fn endpoints_of_the_host_network(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    put_policies(&world, "")?;
    let steps: [&[&Host]; 4] =
        [&[&lab.node], &[&lab.node, &lab.node2], &[&lab.node2], &[&lab.node, &lab.pod1, &lab.pod3]];
    for (step, hosts) in steps.iter().enumerate() {
        for (number, ..) in POLICIES {
            world.put(slices(&format!("s{number}"), hosts))?;
        }
        world.compare(&format!("step {step}"))?;
    }
    Ok(())
}

/// Objects that the API server accepts, although no controller writes them.
pub(crate) fn odd_slices(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    put_policies(&world, "")?;
    let slice = |name: &str, kind: &str, service: &str, ports: &str, endpoints: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}, namespace: default, \
             labels: {{kubernetes.io/service-name: {service}}}}}\n\
             addressType: {kind}\nports: {ports}\nendpoints: {endpoints}\n"
        )
    };
    let ports = "[{name: tcp, port: 8080}, {name: udp, protocol: UDP, port: 8080}]";
    let several = "[{addresses: [10.244.0.11, 10.244.0.12], nodeName: node-1}]";
    world.put(slice("several", "IPv4", "s1", ports, several))?;
    let other = "[{addresses: ['fd00:244:1::21'], nodeName: node-10}]";
    world.put(slice("other", "IPv6", "s1", ports, other))?;
    world.put(slice("names", "FQDN", "s2", ports, "[{addresses: [pod-1.example]}]"))?;
    world.compare("several addresses, names")?;
    let all = "[{name: tcp}, {name: udp, protocol: UDP, port: 8081}]";
    world.put(slice("all", "IPv4", "s2", all, several))?;
    world.put(slice("none", "IPv4", "s3", "[]", several))?;
    world.compare("ports without number, no ports")?;
    world.put(full(LEFT, 5))?;
    world.put(slice("moving", "IPv4", LEFT, ports, several))?;
    world.compare("a slice about to move")?;
    world.put(slice("moving", "IPv4", "s3", ports, several))?;
    world.compare("a slice moves")?;
    Ok(())
}
