//! What the agent says when it cannot start.

use anyhow::Result;
use shunt_testbed::Agent;

use crate::world::{CLUSTER_CIDR, SHUNT, World};

#[test]
fn a_network_namespace_that_is_not_there() -> Result<()> {
    let output = std::process::Command::new(SHUNT)
        .args(["run", "--once", "--netns", "/proc/self/fd/9999", "--manifests", "/"])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert_eq!(log.lines().count(), 1, "one clear sentence:\n{log}");
    assert!(log.contains("/proc/self/fd/9999"), "{log}");
    Ok(())
}

#[test]
fn without_the_capability_the_agent_says_so() -> Result<()> {
    let world = World::with_web()?;
    let without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    let output = world.agent(CLUSTER_CIDR)?.wrapper(&without).once()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.lines().any(|line| line.contains("CAP_NET_ADMIN")), "{log}");
    Ok(())
}

#[test]
fn manifests_that_are_not_there() -> Result<()> {
    let world = World::new()?;
    let missing = world.manifests.path().join("missing");
    let output = Agent::builder(SHUNT, &world.lab.node).manifests(&missing).once()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains(&missing.display().to_string()), "{log}");
    Ok(())
}
