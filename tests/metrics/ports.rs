//! Ports that are taken.

use std::net::TcpListener;

use anyhow::Result;

use crate::world::{HEALTH, METRICS, World};

/// Takes a port on the node.
fn take(world: &World, port: u16) -> Result<TcpListener> {
    world.lab.node.run(|| Ok(TcpListener::bind(("0.0.0.0", port))?))
}

#[test]
fn a_taken_port_is_said_and_tried_again() -> Result<()> {
    let world = World::new()?;
    let taken = take(&world, METRICS)?;
    let agent = world.agent().start()?;
    agent.wait_for_log(&["metricsBindAddress", "127.0.0.1:10249", "trying again"])?;
    drop(taken);
    agent.wait_for_answer(METRICS, "/healthz", |answer| (answer.body == "ok").then_some(()))?;
    agent.stop()
}

#[test]
fn a_taken_port_is_the_end_if_that_is_asked_for() -> Result<()> {
    for (port, field) in [(METRICS, "metricsBindAddress"), (HEALTH, "healthzBindAddress")] {
        let world = World::new()?;
        let _taken = take(&world, port)?;
        let agent = world.agent().config("bindAddressHardFail: true\n")?.spawn()?;
        assert_eq!(agent.wait_for_end()?.code(), Some(1), "{}", agent.log());
        agent.wait_for_log(&["ERROR", field, &port.to_string()])?;
    }
    Ok(())
}

#[test]
fn both_servers_listen_where_they_are_told() -> Result<()> {
    let world = World::new()?;
    let config = "healthzBindAddress: 127.0.0.1:9001\nmetricsBindAddress: 127.0.0.1:9002\n";
    let agent = world.agent().config(config)?.spawn()?;
    agent.wait_for_answer(9001, "/healthz", |answer| (answer.status == 200).then_some(()))?;
    assert_eq!(agent.http_get(9002, "/proxyMode")?.body, "nftables");
    agent.stop()
}
