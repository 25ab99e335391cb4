//! An agent that waits for the lock of another one.

use anyhow::{Result, ensure};
use shunt_testbed::{Agent, eventually};

use super::{BOTH, PODS, V4, V6};
use crate::world::{SHUNT, World, run_shunt, status_json};

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

/// Two pods on a node: the probe of each must judge its own agent.
#[test]
fn startup_probe_succeeds_for_an_agent_that_has_programmed() -> Result<()> {
    let world = World::with_web()?;
    let node = &world.lab.node;
    let same_container = || -> Result<(bool, String)> {
        let output = run_shunt(node, &["status", "--startup-probe"])?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    // The process of the agent is not visible in the new namespace of process IDs.
    let other_container = || -> Result<(bool, String)> {
        let mut command = node.command("unshare");
        command.args(["--pid", "--fork", SHUNT, "status", "--startup-probe"]);
        let output = command.output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let fails = |probe: &dyn Fn() -> Result<(bool, String)>, why: &str| -> Result<()> {
        let (is_started, log) = probe()?;
        ensure!(!is_started && log.contains(why), "{log}");
        Ok(())
    };
    fails(&same_container, "no shunt")?;
    // Nothing listens there, so nothing is listed.
    let early = Agent::builder(SHUNT, node).arg("--master=http://127.0.0.1:9").spawn()?;
    eventually("an answer", || Ok(same_container()?.1.contains("nothing has been").then_some(())))?;
    fails(&other_container, "waits for its end")?;
    early.stop()?;

    let first = world.agent(BOTH)?.start()?;
    ensure!(same_container()?.0);
    let second = waiting(&world, BOTH)?;
    fails(&other_container, "waits for its end")?;
    second.stop()?;
    first.stop()
}
