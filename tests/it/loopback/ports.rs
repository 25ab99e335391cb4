//! Ports that other processes have, and the thread that serves them.

use std::net::TcpListener;

use anyhow::Result;

use super::{
    BOTH, PODS, RAW, V4, V6, connect, explained, has_thread, raw_server, raw_service, wait_for,
    wait_for_metric,
};
use crate::world::{World, status_json};

#[test]
fn taken_port_is_reported_and_costs_no_other() -> Result<()> {
    let world = World::with_web()?;
    let _server = raw_server(&world.lab.pod1)?;
    world.manifests.write("raw.yaml", raw_service(&world.lab.pod1))?;
    let taken = world.lab.node.run(|| Ok(TcpListener::bind(V4)?))?;
    let agent = world.agent(BOTH)?.start()?;
    let line = agent.wait_for_log(&["cannot listen for the node port on loopback"])?;
    for word in ["ERROR", "default/web", V4, "in use"] {
        assert!(line.contains(word), "no {word}: {line}");
    }
    // The port of the other family, and other ports.
    world.lab.from(&world.lab.node).tcp(V6).eventually().reaches(&PODS);
    connect(&world, RAW)?;
    let (failed, listening) = ([("state", "failed")], [("state", "listening")]);
    wait_for_metric(&world, "shunt_loopback_node_ports", &failed, 1.0)?;
    wait_for_metric(&world, "shunt_loopback_node_ports", &listening, 2.0)?;
    let status = status_json(&world.lab.node)?;
    assert_eq!(status["loopback"]["listening"], 2);
    let unbound = &status["loopback"]["unbound"][0];
    assert_eq!((&unbound["service"], &unbound["address"]), (&"default/web".into(), &V4.into()));
    let warning = status["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains(V4) && warning.contains("default/web"), "{status:#}");
    let explanation = explained(&world, V4)?;
    assert_eq!(explanation["verdict"], "unknown", "{explanation:#}");
    assert_eq!(explanation["findings"][0]["code"], "loopback-port-taken", "{explanation:#}");

    drop(taken);
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    agent.wait_for_log(&["INFO", "listening for the node port on loopback", V4])?;
    wait_for_metric(&world, "shunt_loopback_node_ports", &failed, 0.0)?;
    assert_eq!(agent.log().matches("cannot listen for the node port").count(), 1);
    assert_eq!(explained(&world, V4)?["verdict"], "delivered");
    agent.stop()
}

#[test]
fn last_node_port_ends_the_thread() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.agent(BOTH)?.start()?;
    let labels = [("state", "listening")];
    wait_for_metric(&world, "shunt_loopback_node_ports", &labels, 2.0)?;
    assert!(has_thread(&agent)?);
    world.manifests.remove("web.yaml")?;
    wait_for_metric(&world, "shunt_loopback_node_ports", &labels, 0.0)?;
    wait_for("the end of the thread", || Ok((!has_thread(&agent)?).then_some(())))?;
    agent.stop()
}
