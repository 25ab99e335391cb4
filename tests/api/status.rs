//! What `shunt status` tells of the server.

use std::process::Command;

use anyhow::Result;
use shunt_fake_apiserver::{Api, Case, both};
use shunt_testbed::eventually;

use crate::world::World;

pub(crate) fn cases() -> Vec<Case> {
    both![an_outage_is_told_as_long_as_it_lasts, an_agent_that_has_not_begun_says_so]
}

/// Returns what `shunt status` writes.
pub(crate) fn text(world: &World) -> Result<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shunt"));
    let output = command.args(["status", "--netns"]).arg(world.lab.node.path()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until the first line has all of these parts.
pub(crate) fn wait_for(world: &World, parts: &[&str]) -> Result<String> {
    eventually(format_args!("{parts:?}"), || {
        let told = text(world)?;
        let first = told.lines().next().unwrap_or_default();
        let is_told = parts.iter().all(|part| first.contains(part));
        Ok(is_told.then_some(told))
    })
}

fn an_outage_is_told_as_long_as_it_lasts(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let _agent = world.start()?;
    let told = wait_for(&world, &["OK  "])?;
    let address = world.gate.address().to_string();
    assert!(told.contains(&format!("API server https://{address}/, connected")), "{told}");
    assert!(told.contains(" 6 endpoints in 2 EndpointSlices"), "{told}");
    world.gate.refuse()?;
    wait_for(&world, &["PROBLEM  the API server", &address, "the rules stay"])?;
    world.gate.reopen()?;
    wait_for(&world, &["OK  "])?;
    Ok(())
}

fn an_agent_that_has_not_begun_says_so(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.gate.refuse()?;
    let _agent = world.agent()?.spawn()?;
    let told = wait_for(&world, &["PROBLEM  the API server"])?;
    assert!(told.contains("PROBLEM  nothing has been programmed yet"), "{told}");
    world.gate.reopen()?;
    wait_for(&world, &["OK  "])?;
    Ok(())
}
