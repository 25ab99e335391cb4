//! Ports that other processes have, and the thread that serves them.

use anyhow::Result;

use super::{BOTH, has_thread, wait_for, wait_for_metric};
use crate::world::World;

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
