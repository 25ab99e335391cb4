//! The agent is replaced by another build while there is traffic: nothing of it is lost.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use shunt_fake_apiserver::{Api, Case, both};
use shunt_testbed::{Agent, Protocol, Scratch, Traffic};

use crate::world::{SHUNT, World};

pub(crate) fn cases() -> Vec<Case> {
    both![another_build_takes_over_unnoticed, another_build_takes_over_owned_tables_unnoticed]
}

/// Questions of each flow before and after each step.
const BESIDE: usize = 20;

/// The same program in another file, as a new image brings it.
fn another_build() -> Result<(Scratch, PathBuf)> {
    let folder = Scratch::new()?;
    let build = folder.path().join("shunt-next");
    fs::copy(SHUNT, &build)?;
    Ok((folder, build))
}

fn traffic(world: &World) -> Result<Traffic> {
    let lab = &world.lab;
    let flows = [
        (&lab.client, Protocol::Tcp, "10.96.0.10:80"),
        (&lab.client, Protocol::Tcp, "[2001:db8:2::10]:30080"),
        (&lab.client, Protocol::Udp, "203.0.113.10:80"),
        (&lab.pod2, Protocol::Tcp, "[fd00:96::10]:80"),
        (&lab.pod2, Protocol::Udp, "10.96.0.10:80"),
        (&lab.node, Protocol::Tcp, "192.0.2.10:30080"),
    ];
    Traffic::start(flows, Duration::from_millis(1))
}

/// Replaces the agent in all ways: one ends before the other starts, asked to or killed, and the
/// order of a rolling update with surge, in which the next one waits. `after` is told of each that
/// has taken over.
fn replace(
    world: &World,
    start: impl Fn(bool) -> Result<Agent>,
    after: impl Fn(&Agent) -> Result<()>,
) -> Result<()> {
    let mut agent = start(false)?;
    agent.wait_ready()?;
    let traffic = traffic(world)?;
    let mut next_build = true;
    for killed in [false, true] {
        for overlapping in [false, true] {
            traffic.more(BESIDE)?;
            let end = |agent: Agent| if killed { agent.kill() } else { agent.stop() };
            agent = if overlapping {
                let next = start(next_build)?;
                next.wait_for_log(&["another shunt (process", "waiting until it ends"])?;
                traffic.more(BESIDE)?;
                end(agent)?;
                next
            } else {
                end(agent)?;
                traffic.more(BESIDE)?;
                start(next_build)?
            };
            agent.wait_ready()?;
            after(&agent)?;
            traffic.more(BESIDE)?;
            next_build = !next_build;
        }
    }
    traffic.stop().all()?;
    world.mark()?;
    agent.stop()
}

fn another_build_takes_over_unnoticed(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let (_folder, build) = another_build()?;
    world.start()?.stop()?;
    let generation = world.generation()?;
    let start = |next: bool| {
        let build = if next { build.clone() } else { SHUNT.into() };
        world.agent_of(build, &world.kubeconfig)?.arg("--own-tables=false").spawn()
    };
    replace(&world, start, |_| {
        assert_eq!(world.generation()?, generation, "something was written");
        Ok(())
    })
}

/// Whoever owns a table has to say so: that is all that is written.
fn another_build_takes_over_owned_tables_unnoticed(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let (_folder, build) = another_build()?;
    world.agent_of(SHUNT, &world.kubeconfig)?.start()?.stop()?;
    let start = |next: bool| {
        let build = if next { build.clone() } else { SHUNT.into() };
        world.agent_of(build, &world.kubeconfig)?.spawn()
    };
    replace(&world, start, |agent| {
        let log = agent.log();
        for line in log.lines().filter(|line| line.contains(" committed ")) {
            assert!(line.contains("added=0 deleted=0"), "{log}");
        }
        Ok(())
    })
}
