//! Which endpoints a Service has: slices, conditions, topology hints.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{EndpointSlice, Host, Node, Protocol};

use super::changes::{Changes, DYING, PUBLISHED, READY, SERVING, UNREADY, slices_of};
use crate::table::{Case, Family, Frontend, Table};
use crate::world::{World, target_ports, web};

/// What becomes of probes.
#[derive(Clone, Copy, Debug)]
enum Goes {
    To(&'static [&'static str]),
    Refused,
    Dropped,
}

use Goes::{Dropped, Refused, To};

fn pods(world: &World) -> [&Host; 3] {
    [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3]
}

/// A slice with the pods that have conditions, in their order.
fn with_conditions(world: &World, conditions: [&'static str; 3]) -> String {
    let endpoints: Vec<_> = pods(world)
        .into_iter()
        .zip(conditions)
        .filter(|(_, conditions)| !conditions.is_empty())
        .collect();
    slices_of("web", "all", &endpoints)
}

#[track_caller]
fn expect(world: &World, table: Table, step: &str, from: &Host, goes: Goes) -> Result<()> {
    table.check(step, |case: Case| {
        let probe = world.lab.from(from).probe(case.protocol, case.address());
        match goes {
            To(servers) => drop(probe.reaches(servers)),
            Refused => probe.refused(),
            Dropped => probe.dropped(),
        }
        Ok(())
    })
}

const GONE: &str = "";

/// The conditions of the three pods, the first two of which are local; where clients go under
/// policy Cluster, and under policy Local.
const FALLBACK: [([&str; 3], Goes, Goes); 12] = [
    ([READY, READY, READY], To(&["pod-1", "pod-2", "pod-3"]), To(&["pod-1", "pod-2"])),
    ([SERVING, READY, READY], To(&["pod-2", "pod-3"]), To(&["pod-2"])),
    ([SERVING, SERVING, READY], To(&["pod-3"]), To(&["pod-1", "pod-2"])),
    ([SERVING, DYING, READY], To(&["pod-3"]), To(&["pod-1"])),
    ([DYING, UNREADY, READY], To(&["pod-3"]), Dropped),
    ([SERVING, GONE, SERVING], To(&["pod-1", "pod-3"]), To(&["pod-1"])),
    ([GONE, DYING, SERVING], To(&["pod-3"]), Dropped),
    ([PUBLISHED, UNREADY, READY], To(&["pod-1", "pod-3"]), To(&["pod-1"])),
    ([PUBLISHED, SERVING, PUBLISHED], To(&["pod-1", "pod-3"]), To(&["pod-1"])),
    ([SERVING, GONE, PUBLISHED], To(&["pod-3"]), To(&["pod-1"])),
    ([DYING, UNREADY, DYING], Refused, Refused),
    ([GONE, GONE, GONE], Refused, Refused),
];

#[test]
fn under_policy_cluster_terminating_endpoints_are_the_last_resort() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", web())?;
    let changes = Changes::start(&world)?;
    for (conditions, cluster, _) in FALLBACK {
        changes.write(&world, "slices.yaml", with_conditions(&world, conditions))?;
        let step = format!("{conditions:?}");
        expect(&world, Table::ALL, &step, &world.lab.client, cluster)?;
    }
    Ok(())
}

#[test]
fn under_policy_local_terminating_local_endpoints_are_the_last_resort() -> Result<()> {
    let world = World::new()?;
    let service = web().spec("externalTrafficPolicy: Local").spec("internalTrafficPolicy: Local");
    world.manifests.write("web.yaml", service)?;
    let changes = Changes::start(&world)?;
    for (conditions, cluster, local) in FALLBACK {
        changes.write(&world, "slices.yaml", with_conditions(&world, conditions))?;
        let step = format!("{conditions:?}");
        expect(&world, Table::ALL, &step, &world.lab.client, local)?;
        // The node itself uses external frontends as under policy Cluster.
        expect(&world, Table::EXTERNAL, &step, &world.lab.node, cluster)?;
    }
    Ok(())
}

#[test]
fn slices_are_added_up_and_endpoints_move_between_them() -> Result<()> {
    let world = World::new()?;
    let [pod1, pod2, pod3] = pods(&world);
    world.manifests.write("web.yaml", web())?;
    let write = |suffix: &str, endpoints: &[(&Host, &str)]| {
        world.manifests.write(&format!("{suffix}.yaml"), slices_of("web", suffix, endpoints))
    };
    let changes = Changes::start(&world)?;
    let settled = |step: &str, servers| {
        changes.settle(&world)?;
        expect(&world, Table::ALL, step, &world.lab.client, To(servers))
    };

    write("a", &[(pod1, READY)])?;
    settled("one slice", &["pod-1"])?;
    write("b", &[(pod2, READY), (pod3, READY)])?;
    settled("two slices", &["pod-1", "pod-2", "pod-3"])?;
    write("c", &[(pod1, READY), (pod2, READY)])?;
    settled("an overlap", &["pod-1", "pod-2", "pod-3"])?;
    write("a", &[])?;
    settled("one copy is gone", &["pod-1", "pod-2", "pod-3"])?;
    write("a", &[(pod1, SERVING)])?;
    settled("one copy is terminating", &["pod-1", "pod-2", "pod-3"])?;
    write("b", &[(pod3, READY)])?;
    write("c", &[(pod2, READY)])?;
    settled("the living copy is gone", &["pod-2", "pod-3"])?;
    write("a", &[(pod1, READY)])?;
    settled("it is back", &["pod-1", "pod-2", "pod-3"])?;

    // From one to the other, with both copies for a while and with none.
    write("a", &[(pod1, READY), (pod3, READY)])?;
    write("b", &[])?;
    settled("moved, first added", &["pod-1", "pod-2", "pod-3"])?;
    write("c", &[])?;
    write("b", &[(pod2, READY)])?;
    settled("moved, first removed", &["pod-1", "pod-2", "pod-3"])?;
    for file in ["a.yaml", "c.yaml"] {
        world.manifests.remove(file)?;
    }
    settled("one slice is left", &["pod-2"])
}

#[test]
fn a_slice_that_names_another_service_moves_at_once() -> Result<()> {
    let world = World::new()?;
    let [pod1, pod2, pod3] = pods(&world);
    let other = crate::world::cluster_ip_service("other", &["10.96.0.20", "fd00:96::20"]);
    world.manifests.write("web.yaml", format!("{}{other}", web()))?;
    world.manifests.write("fixed-web.yaml", slices_of("web", "fixed", &[(pod1, READY)]))?;
    world.manifests.write("fixed-other.yaml", slices_of("other", "fixed", &[(pod2, READY)]))?;
    // The same slices whatever Service they name.
    let moving = |service: &str| {
        let text = slices_of(service, "moving", &[(pod3, READY)]);
        text.replace(&format!("{service}-moving"), "moving")
    };
    world.manifests.write("moving.yaml", moving("web"))?;
    let changes = Changes::start(&world)?;
    let step = |step: &str, of_web, of_other: &[&str]| {
        expect(&world, Table::ALL, step, &world.lab.client, To(of_web))?;
        for to in ["10.96.0.20:80", "[fd00:96::20]:80"] {
            for protocol in Protocol::ALL {
                let client = world.lab.from(&world.lab.client);
                drop(client.probe(protocol, to).reaches(of_other));
            }
        }
        anyhow::Ok(())
    };
    for _ in 0..2 {
        step("it is web's", &["pod-1", "pod-3"], &["pod-2"])?;
        changes.write(&world, "moving.yaml", moving("other"))?;
        step("it is the other's", &["pod-1"], &["pod-2", "pod-3"])?;
        changes.write(&world, "moving.yaml", moving("web"))?;
    }
    // Without the label it is nobody's.
    let nobodys = moving("web").replace("kubernetes.io/service-name", "example.org/something");
    changes.write(&world, "moving.yaml", nobodys)?;
    step("it is nobody's", &["pod-1"], &["pod-2"])
}

const MANY: u16 = 5_000;
const PER_SLICE: u16 = 100;
/// For the kernel to have resized a map.
const PATIENCE: Duration = Duration::from_secs(10);

fn many_endpoints(slices: std::ops::Range<u16>) -> Result<String> {
    let mut text = String::new();
    for number in slices {
        for slice in [EndpointSlice::v4("web"), EndpointSlice::v6("web")] {
            let v4 = slice.to_string().contains("addressType: IPv4");
            let name = format!("web-{number}-{}", if v4 { "v4" } else { "v6" });
            let slice = target_ports(slice.name(&name));
            let places = number * PER_SLICE..(number + 1) * PER_SLICE;
            let slice = places.fold(slice, |slice, place| {
                let v4_address = format!("10.245.{}.{}", place / 256, place % 256);
                let address = if v4 { v4_address } else { format!("fd00:245::{place:x}") };
                slice.endpoint(&address, "nodeName: node-2")
            });
            write!(text, "{slice}")?;
        }
    }
    Ok(text)
}

#[test]
fn five_thousand_endpoints_are_all_in_use() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    // They are all addresses of one pod.
    lab.node.ip("route add 10.245.0.0/16 via 192.0.2.20\n\
         route add fd00:245::/64 via 2001:db8:2::20\n")?;
    lab.node2.ip("route add 10.245.0.0/16 via 10.244.1.21 dev veth-pod-3 onlink\n\
         route add fd00:245::/64 via fd00:244:1::21 dev veth-pod-3 onlink\n")?;
    // So that datagrams may be answered from them, too.
    lab.pod3.sysctl(&[("net/ipv6/ip_nonlocal_bind", "1")])?;
    lab.pod3.ip("route add local 10.245.0.0/16 dev lo\n\
         route add local fd00:245::/64 dev lo\n")?;
    // While the kernel still resizes the map behind the commit, it lists only a part of it.
    let wait_for_pool = |family: Family, wanted: u16| -> Result<()> {
        let args = ["list", "map", family.table(), "shunt", "endpoints"];
        let places = family.of("10.96.0.10 . tcp . 80 . ", "fd00:96::10 . tcp . 80 . ");
        let started = Instant::now();
        loop {
            let listed = lab.node.output("nft", &args)?.matches(places).count();
            if listed == usize::from(wanted) {
                return Ok(());
            }
            ensure!(started.elapsed() < PATIENCE, "{family:?}: {listed} instead of {wanted}");
        }
    };

    world.manifests.write("web.yaml", web())?;
    world.manifests.write("slices.yaml", many_endpoints(0..MANY / PER_SLICE)?)?;
    let changes = Changes::start(&world)?;
    for family in [Family::V4, Family::V6] {
        wait_for_pool(family, MANY)?;
    }
    Table::CLUSTER_IPS.check("all", |case| {
        let to = case.address();
        lab.from(&lab.client).probe(case.protocol, to).times(200).reaches(&["pod-3"]);
        let client = lab.client.ip_like(to.ip()).context("a client without address")?;
        let family = case.family.of("ipv4", "ipv6");
        let protocol = case.protocol.to_string().to_lowercase();
        let list = ["-L", "-f", family, "-p", &protocol, "-s", &client.to_string()];
        let list = lab.node.output("conntrack", &list)?;
        let to = format!("dst={} ", to.ip());
        let servers: BTreeSet<&str> = list
            .lines()
            .filter(|line| line.contains(&to))
            .filter_map(|line| line.split("src=").nth(2)?.split_whitespace().next())
            .collect();
        // 196 are expected; one has to believe in 40 coincidences to expect 160.
        assert!(servers.len() > 160, "{case}: 200 connections to only {}", servers.len());
        Ok(())
    })?;

    changes.write(&world, "slices.yaml", many_endpoints(1..MANY / PER_SLICE)?)?;
    for family in [Family::V4, Family::V6] {
        wait_for_pool(family, MANY - PER_SLICE)?;
    }
    expect(&world, Table::CLUSTER_IPS, "fewer", &lab.client, To(&["pod-3"]))
}

const ZONE: &str = "topology.kubernetes.io/zone";
const READY_A: &str = "hints: {forZones: [{name: a}]}";
const READY_B: &str = "hints: {forZones: [{name: b}]}";
const READY_AB: &str = "hints: {forZones: [{name: a}, {name: b}]}";
const SERVING_A: &str =
    "conditions: {ready: false, serving: true, terminating: true}, hints: {forZones: [{name: a}]}";
const HERE_B: &str = "hints: {forNodes: [{name: node-1}], forZones: [{name: b}]}";
const THERE_A: &str = "hints: {forNodes: [{name: node-2}], forZones: [{name: a}]}";
const THERE_B: &str = "hints: {forNodes: [{name: node-2}], forZones: [{name: b}]}";
const ALL: &[&str] = &["pod-1", "pod-2", "pod-3"];

/// Endpoints, and where clients go in zone a, in zone b and in none.
type Hints = ([&'static str; 3], Pods, Pods, Pods);
type Pods = &'static [&'static str];

const HINTS: [Hints; 9] = [
    ([READY_A, READY_B, READY_B], &["pod-1"], &["pod-2", "pod-3"], ALL),
    ([READY_A, READY_AB, READY_B], &["pod-1", "pod-2"], &["pod-2", "pod-3"], ALL),
    // One without a hint: none counts.
    ([READY_A, READY, READY_B], ALL, ALL, ALL),
    // None for zone a: all.
    ([READY_B, READY_B, READY_B], ALL, ALL, ALL),
    // Terminating endpoints have no say, …
    ([READY_A, READY_B, SERVING], &["pod-1"], &["pod-2"], &["pod-1", "pod-2"]),
    // … and no hints as the last resort.
    ([SERVING_A, SERVING, GONE], &["pod-1", "pod-2"], &["pod-1", "pod-2"], &["pod-1", "pod-2"]),
    // Hints for nodes come before those for zones, …
    ([HERE_B, THERE_A, THERE_B], &["pod-1"], &["pod-1"], &["pod-1"]),
    // … if all have them, …
    ([HERE_B, READY_A, READY_B], &["pod-2"], &["pod-1", "pod-3"], ALL),
    // … and one is for this node.
    ([THERE_A, THERE_B, THERE_B], &["pod-1"], &["pod-2", "pod-3"], ALL),
];

fn node_in(world: &World, zone: Option<&str>) -> Node {
    let node = Node::of(&world.lab.node);
    zone.map_or(node.clone(), |zone| node.label(ZONE, zone))
}

#[test]
fn hints_for_zones_and_nodes_count_if_all_have_them() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", web())?;
    let changes = Changes::start(&world)?;
    for (endpoints, zone_a, zone_b, nowhere) in HINTS {
        changes.write(&world, "slices.yaml", with_conditions(&world, endpoints))?;
        for (zone, servers) in [(Some("a"), zone_a), (Some("b"), zone_b), (None, nowhere)] {
            // The change of the label alone moves traffic.
            changes.write(&world, "node.yaml", node_in(&world, zone))?;
            let step = format!("{endpoints:?}, zone {zone:?}");
            expect(&world, Table::ALL, &step, &world.lab.client, To(servers))?;
        }
    }
    Ok(())
}

/// Policy Local is about this node; hints do not narrow it down.
#[test]
fn hints_do_not_matter_under_policy_local() -> Result<()> {
    let world = World::new()?;
    let service = web().spec("externalTrafficPolicy: Local").spec("internalTrafficPolicy: Local");
    world.manifests.write("web.yaml", service)?;
    world.manifests.write("node.yaml", node_in(&world, Some("a")))?;
    world.manifests.write("slices.yaml", with_conditions(&world, [READY_B, READY_B, READY_A]))?;
    let _changes = Changes::start(&world)?;
    let local = To(&["pod-1", "pod-2"]);
    expect(&world, Table::ALL, "zone a", &world.lab.client, local)?;
    let to_external = |case: &Case| case.frontend != Frontend::ClusterIp;
    for case in Table::ALL.cases().into_iter().filter(to_external) {
        let node = world.lab.from(&world.lab.node).probe(case.protocol, case.address());
        node.reaches(&["pod-3"]);
    }
    Ok(())
}
