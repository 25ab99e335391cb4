//! kube-proxy beside the agent: what is found of it, and what `shunt cleanup --kube-proxy` does.

use std::fs;

use anyhow::{Context, Result, ensure};
use shunt_testbed::{Agent, eventually};

use crate::world::{CLUSTER_CIDR, World, run_shunt};

fn run(world: &World, arguments: &[&str]) -> Result<String> {
    let output = run_shunt(&world.lab.node, arguments)?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(output.status.success(), "{text}");
    Ok(text)
}

/// Waits until the agent has found so many processes.
fn wait_for_processes(agent: &Agent, count: f64) -> Result<()> {
    let labels = [("kind", "process")];
    agent.wait_for_sample("shunt_kube_proxy_leftovers", &labels, |it| it == count).map(drop)
}

fn start(world: &World) -> Result<Agent> {
    world.agent(CLUSTER_CIDR)?.arg("--kube-proxy-check-period=50ms").start()
}

#[test]
fn a_running_kube_proxy_is_found_if_it_can_be_seen() -> Result<()> {
    let world = World::with_web()?;
    let scratch = tempfile::tempdir()?;
    let program = scratch.path().join("kube-proxy");
    fs::copy("/bin/sleep", &program)?;
    let agent = start(&world)?;
    wait_for_processes(&agent, 0.0)?;
    let mut process = world.lab.node.command(&program).arg("600").spawn()?;
    wait_for_processes(&agent, 1.0)?;
    let pid = process.id();
    agent.wait_for_log(&["WARN", &format!("a running process ({pid})"), "stop it"])?;
    let log = run(&world, &["cleanup", "--kube-proxy", "--keep-own"])?;
    assert!(log.contains(&format!("processes: [{pid}]")), "{log}");
    // One that runs in another network namespace is none of ours.
    let mut elsewhere = world.lab.node2.command(&program).arg("600").spawn()?;
    process.kill()?;
    process.wait()?;
    wait_for_processes(&agent, 0.0)?;
    let comm = format!("/proc/{}/comm", elsewhere.id());
    eventually("the other process", || {
        Ok((fs::read_to_string(&comm)?.trim() == "kube-proxy").then_some(()))
    })?;
    wait_for_processes(&agent, 0.0).context("a process elsewhere")?;
    elsewhere.kill()?;
    elsewhere.wait()?;
    agent.stop()
}
