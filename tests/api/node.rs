//! The agent's own Node.

use anyhow::Result;
use shunt_fake_apiserver::{Api, Case, Key, Kind, both};
use shunt_testbed::{Echo, EndpointSlice, HEALTH_PORT, Node, Protocol};

use crate::world::{WEB, World, web};

pub(crate) fn cases() -> Vec<Case> {
    both![
        node_may_appear_late,
        deleted_node_keeps_its_zone_and_addresses,
        a_label_of_the_node_counts_at_once,
        other_nodes_do_not_matter,
    ]
}

const ZONE: &str = "topology.kubernetes.io/zone";

fn key() -> Key {
    Key::new(Kind::Node, "node-1")
}

/// [`web`] with `pod-1` for zone a and `pod-2` for zone b.
fn put_zones(world: &World) -> Result<()> {
    world.api.put(web())?;
    let lab = &world.lab;
    world.api.put(EndpointSlice::pair("web", |slice| {
        slice
            .port("tcp", Protocol::Tcp, 8080)
            .host(&lab.pod1, "conditions: {ready: true}, hints: {forZones: [{name: a}]}")
            .host(&lab.pod2, "conditions: {ready: true}, hints: {forZones: [{name: b}]}")
    }))
}

fn node_may_appear_late(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.api.delete(&key())?;
    put_zones(&world)?;
    let agent = world.agent()?.spawn()?;
    // Without a Node there is no zone, and the node is not fit for load balancers.
    world.assert_web_becomes(&["pod-1", "pod-2"]);
    assert_eq!(agent.http_status("/healthz")?, 503);
    world.api.put(Node::of(&world.lab.node).label(ZONE, "a"))?;
    world.assert_web_becomes(&["pod-1"]);
    agent.wait_ready()
}

/// An address of the node that is not its primary one, and the node port of [`web`] on it.
const SECONDARY: [&str; 2] = ["192.0.2.11:30080", "[2001:db8:2::11]:30080"];

/// A Node that is deleted, or registered again without what controllers write into it, is the same
/// machine: only load balancers look elsewhere.
fn deleted_node_keeps_its_zone_and_addresses(api: Api) -> Result<()> {
    let world = World::new(api)?;
    put_zones(&world)?;
    let node = || Node::of(&world.lab.node).label(ZONE, "a");
    world.api.put(node())?;
    let _own_server = Echo::on(&world.lab.node, 30080)?;
    let agent = world.start()?;
    let assert_unchanged = || {
        let client = world.lab.from(&world.lab.client);
        for to in SECONDARY {
            client.tcp(to).reaches(&["node-1"]);
            client.udp(to).reaches(&["node-1"]);
        }
        client.tcp("192.0.2.10:30080").reaches(&["pod-1"]);
        client.tcp("[2001:db8:2::10]:30080").reaches(&["pod-1"]);
        world.assert_web(&["pod-1"]);
    };
    assert_unchanged();
    let generation = world.generation()?;

    world.api.delete(&key())?;
    agent
        .wait_for_answer(HEALTH_PORT, "/healthz", |answer| (answer.status == 503).then_some(()))?;
    assert_eq!(agent.http_status("/livez")?, 200);
    assert_unchanged();
    world.api.put(Node::without_addresses(&world.lab.node).label(ZONE, "a"))?;
    agent.wait_ready()?;
    assert_unchanged();
    assert_eq!(world.generation()?, generation);

    // What a controller writes then counts.
    world.api.put(Node::of(&world.lab.node).label(ZONE, "b"))?;
    world.assert_web_becomes(&["pod-2"]);
    Ok(())
}

fn a_label_of_the_node_counts_at_once(api: Api) -> Result<()> {
    let world = World::new(api)?;
    put_zones(&world)?;
    world.api.put(Node::of(&world.lab.node).label(ZONE, "a"))?;
    let _agent = world.start()?;
    world.assert_web(&["pod-1"]);
    world.api.put(Node::of(&world.lab.node).label(ZONE, "b"))?;
    world.assert_web_becomes(&["pod-2"]);
    world.api.put(Node::of(&world.lab.node))?;
    world.assert_web_becomes(&["pod-1", "pod-2"]);
    Ok(())
}

fn other_nodes_do_not_matter(api: Api) -> Result<()> {
    let world = World::new(api)?;
    put_zones(&world)?;
    world.api.put(Node::of(&world.lab.node).label(ZONE, "a"))?;
    world.api.put(Node::of(&world.lab.node2).label(ZONE, "b"))?;
    let _agent = world.start()?;
    world.assert_web(&["pod-1"]);
    let generation = world.generation()?;
    world.api.put(Node::of(&world.lab.node2).label(ZONE, "c"))?;
    world.api.delete(&Key::new(Kind::Node, "node-2"))?;
    for to in WEB {
        world.lab.from(&world.lab.client).tcp(to).reaches(&["pod-1"]);
    }
    // Whatever it has not asked for cannot come after this.
    world.api.put(Node::of(&world.lab.node).label(ZONE, "b"))?;
    world.assert_web_becomes(&["pod-2"]);
    assert_eq!(world.generation()?, generation + 1);
    Ok(())
}
