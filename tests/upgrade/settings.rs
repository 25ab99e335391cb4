//! Configuration files of one version in the hands of the other.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use shunt::source::spanned_yaml::{self, typed};

use crate::world::{Version, World};

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

/// The chart's configuration, without what the testbed's has.
fn settings(version: Version) -> Result<String> {
    let text = version.read(RENDERED)?;
    for object in spanned_yaml::parse(text.as_bytes())? {
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
