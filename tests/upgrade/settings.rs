//! Configuration files of one version in the hands of the other.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use shunt::source::spanned_yaml::{self, typed};

use crate::world::{CLUSTER_IP, PODS, Version, World};

/// The chart with its default values, and the file in its ConfigMap.
const RENDERED: &str = "deploy/kustomize/base/shunt.yaml";
const FILE: &str = "config.conf";

/// Unknown fields are ignored with a warning, so that an agent starts with the configuration file of
/// a later version.
pub(crate) fn unknown_fields() -> Result<()> {
    let world = World::new("")?;
    for (agent, file) in [
        (Version::Previous, Version::Current),
        (Version::Current, Version::Previous),
        (Version::Current, Version::Current),
    ] {
        let settings = settings(file)? + "fromTheFuture: true\n";
        let agent = world.agent(agent, &settings)?.start().with_context(|| format!("{file:?}"))?;
        agent.wait_for_log(&["fromTheFuture"])?;
        world.assert_changes_apply()?;
        agent.stop()?;
    }
    Ok(())
}

/// The ports are open as long as a version with the proxy runs. A version without the proxy rejects the
/// setting by its name.
pub(crate) fn node_ports_on_localhost() -> Result<()> {
    const SETTINGS: &str = "nodePortAddresses: [primary, localhost]\n";
    let world = World::new("")?;
    for version in Version::THERE_AND_BACK {
        let node = world.lab.from(&world.lab.node).tcp("127.0.0.1:30080").eventually();
        let agent = match world.agent(version, SETTINGS)?.start() {
            Ok(agent) => {
                node.reaches(&PODS);
                agent
            }
            Err(error) => {
                let error = format!("{error:#}");
                let rejects = error.contains("nodePortAddresses");
                ensure!(version == Version::Previous && rejects, "{version:?}: {error}");
                let agent = world.agent(version, "")?.start()?;
                node.refused();
                agent
            }
        };
        world.lab.from(&world.lab.client).tcp(CLUSTER_IP).reaches(&PODS);
        agent.stop()?;
    }
    Ok(())
}

/// The chart's configuration, without what the testbed's has.
fn settings(version: Version) -> Result<String> {
    let text = version.read(RENDERED)?;
    for object in spanned_yaml::documents(text.as_bytes())? {
        let object = object?;
        if object.value()["kind"] == "ConfigMap" {
            let map: ConfigMap = typed(object.json())?;
            let file = map.data.unwrap_or_default().remove(FILE).context("no file")?;
            let twice = ["apiVersion:", "kind:", "mode:", "detectLocalMode:", "clusterCIDR:"];
            let lines = file.lines().filter(|line| !twice.iter().any(|it| line.starts_with(it)));
            return Ok(lines.map(|line| format!("{line}\n")).collect());
        }
    }
    anyhow::bail!("{RENDERED} of {version:?} has no ConfigMap")
}
