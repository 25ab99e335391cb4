//! An agent that waits for the lock of another one.

use anyhow::Result;
use shunt_testbed::Agent;

use super::{BOTH, PODS, V4, V6};
use crate::world::{World, status_json};

fn waiting(world: &World, config: &str) -> Result<Agent> {
    let agent = world.agent(config)?.spawn()?;
    agent.wait_for_log(&["waiting until it ends"])?;
    Ok(agent)
}

#[test]
fn the_next_agent_serves_what_it_is_configured_to() -> Result<()> {
    let world = World::with_web()?;
    let node = || world.lab.from(&world.lab.node);
    let first = world.agent(BOTH)?.start()?;
    node().tcp(V4).eventually().reaches(&PODS);
    let second = waiting(&world, BOTH)?;
    first.stop()?;
    for address in [V6, V4] {
        node().tcp(address).eventually().reaches(&PODS);
    }
    assert_eq!(status_json(&world.lab.node)?["loopback"]["listening"], 2);
    assert!(!second.log().contains("cannot listen"), "{}", second.log());
    let third = waiting(&world, "mode: nftables\n")?;
    second.kill()?;
    third.wait_ready()?;
    for address in [V6, V4] {
        node().tcp(address).refused();
    }
    third.stop()
}
