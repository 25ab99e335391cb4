//! `/healthz` and `/livez`, as load balancers and probes see them.

use std::fs;

use anyhow::{Result, bail};
use nix::sys::ptrace;
use nix::unistd::Pid;
use shunt_testbed::{Agent, HEALTH_PORT, HttpAnswer, eventually};

use crate::world::{CLUSTER_CIDR, World, manifest, status_json, web};

/// A thread of the agent that hangs, until this is dropped.
struct Hung(Pid);

impl Hung {
    fn thread(agent: &Agent, name: &str) -> Result<Hung> {
        for task in fs::read_dir(format!("/proc/{}/task", agent.pid()))? {
            let task = task?;
            if fs::read_to_string(task.path().join("comm"))?.trim() != name {
                continue;
            }
            let hung = Hung(Pid::from_raw(task.file_name().to_string_lossy().parse()?));
            ptrace::attach(hung.0)?;
            eventually(format_args!("the thread {name} does not stop"), || {
                let stat = fs::read_to_string(task.path().join("stat"))?;
                Ok(stat.contains(") t ").then_some(()))
            })?;
            return Ok(hung);
        }
        bail!("no thread {name}")
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

#[test]
fn sweep_that_hangs_makes_it_unhealthy_once_it_is_late() -> Result<()> {
    let world = World::with_web()?;
    let config = format!("{CLUSTER_CIDR}nftables: {{syncPeriod: 500ms}}\n");
    let agent = world.agent(&config)?.start()?;
    let hung = Hung::thread(&agent, "conntrack")?;
    // The client's flows to the other endpoints are stale.
    world.manifests.write("web.yaml", manifest(&web(), "web", &[&world.lab.pod1]))?;
    for probe in ["/livez", "/healthz"] {
        let late = |answer: &HttpAnswer| (answer.status == 503).then_some(());
        agent.wait_for_answer(HEALTH_PORT, probe, late)?;
    }
    let status = status_json(&world.lab.node)?;
    let problems = status["problems"].to_string();
    assert!(problems.contains("the thread \\\"conntrack\\\" hangs"), "{status:#}");
    drop(hung);
    for probe in ["/livez", "/healthz"] {
        let live = |answer: &HttpAnswer| (answer.status == 200).then_some(());
        agent.wait_for_answer(HEALTH_PORT, probe, live)?;
    }
    agent.stop()
}
