//! Ports that other processes have, and the thread that serves them.

use anyhow::Result;
use shunt_testbed::eventually;

use super::{BOTH, has_thread};
use crate::world::World;

#[test]
fn last_node_port_ends_the_thread() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.agent(BOTH)?.start()?;
    let labels = [("state", "listening")];
    agent.wait_for_sample("shunt_loopback_node_ports", &labels, |it| it == 2.0)?;
    assert!(has_thread(&agent)?);
    world.manifests.remove("web.yaml")?;
    agent.wait_for_sample("shunt_loopback_node_ports", &labels, |it| it == 0.0)?;
    eventually("the end of the thread", || Ok((!has_thread(&agent)?).then_some(())))?;
    agent.stop()
}
