//! `shunt explain` where scenario files do not reach: agents that know too little, spoofed packets,
//! pings, probes. `tests/scenarios/explain.yaml` has the rest.

mod agent;
mod others;
mod routes;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_testbed::{Host, Service, Topology, eventually};

use crate::world::{SHUNT, World, slices};

/// The testbed with Services of these numbers and endpoints.
fn world_with(services: impl Fn(&Topology) -> Vec<(u16, Vec<&Host>)>) -> Result<World> {
    let world = World::new()?;
    for (number, hosts) in services(&world.lab) {
        let name = format!("service-{number}");
        let content = format!("{}{}", Service::everywhere(&name, number), slices(&name, &hosts));
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    Ok(world)
}

/// The answer of `shunt explain`.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) json: Value,
    pub(super) status: i32,
}

impl Answer {
    /// The codes of all findings.
    pub(super) fn codes(&self) -> BTreeSet<&str> {
        let findings = self.json["findings"].as_array().into_iter().flatten();
        findings.filter_map(|finding| finding["code"].as_str()).collect()
    }

    /// Fails unless the answer has this verdict and these codes.
    pub(super) fn is(&self, verdict: &str, codes: &[&str]) -> Result<()> {
        let same = self.codes().into_iter().eq(codes.iter().copied());
        ensure!(self.json["verdict"] == verdict && same, "{verdict} {codes:?}: {:#}", self.json);
        Ok(())
    }
}

/// Runs `shunt explain` in the network namespace of the agent.
pub(super) fn explain(world: &World, arguments: &[&str]) -> Result<Answer> {
    let mut command = world.lab.node.command(SHUNT);
    let output = command.arg("explain").args(arguments).arg("--output=json").output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let json = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("explain {arguments:?}: {errors}"))?;
    Ok(Answer { json, status: output.status.code().context("ended by a signal")? })
}

/// Asks until the answer is as `is_so` wants it: for what follows a change.
pub(super) fn wait_for(
    world: &World,
    arguments: &[&str],
    is_so: impl Fn(&Answer) -> bool,
) -> Result<Answer> {
    let ask = || Ok(explain(world, arguments).ok().filter(&is_so));
    eventually(format_args!("another answer to {arguments:?}"), ask)
}
