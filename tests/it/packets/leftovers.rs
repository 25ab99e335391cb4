//! kube-proxy beside the agent: what is found of it, and what `shunt cleanup --kube-proxy` does.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{Agent, Exposition, METRICS_PORT};

use crate::world::{CLUSTER_CIDR, World, run_shunt};

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(world: &World, arguments: &[&str]) -> Result<String> {
    let output = run_shunt(&world.lab.node, arguments)?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(output.status.success(), "{text}");
    Ok(text)
}

/// Waits until the metric has these values, by kind.
fn wait_for_metric(agent: &Agent, expected: &[(&str, f64)]) -> Result<()> {
    const NAME: &str = "shunt_kube_proxy_leftovers";
    agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        let is =
            |(kind, value): &(&str, f64)| scraped.value(NAME, &[("kind", kind)]) == Some(*value);
        expected.iter().all(is).then_some(())
    })
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
    wait_for_metric(&agent, &[("process", 0.0)])?;
    let process = Process(world.lab.node.command(&program).arg("600").spawn()?);
    wait_for_metric(&agent, &[("process", 1.0)])?;
    let pid = process.0.id();
    agent.wait_for_log(&["WARN", &format!("a running process ({pid})"), "stop it"])?;
    let log = run(&world, &["cleanup", "--kube-proxy", "--keep-own"])?;
    assert!(log.contains(&format!("processes: [{pid}]")), "{log}");
    // One that runs in another network namespace is none of ours.
    let elsewhere = Process(world.lab.node2.command(&program).arg("600").spawn()?);
    drop(process);
    wait_for_metric(&agent, &[("process", 0.0)])?;
    let start = Instant::now();
    while fs::read_to_string(format!("/proc/{}/comm", elsewhere.0.id()))?.trim() != "kube-proxy" {
        ensure!(start.elapsed() < Duration::from_secs(10), "the other process does not start");
    }
    wait_for_metric(&agent, &[("process", 0.0)]).context("a process elsewhere")?;
    agent.stop()
}
