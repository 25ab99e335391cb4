//! Commands of one version beside an agent of the other.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::world::{Version, World, text};

/// Commands that ask the agent for more than its status.
const OTHERS: [&[&str]; 3] = [&["services"], &["explain", "--to", "10.96.0.10:80"], &["diff"]];

/// A command that cannot use the answer says that the versions differ, and what to do.
pub(crate) fn of_the_current_version() -> Result<()> {
    let world = World::new("")?;
    let agent = world.agent(Version::Previous, "")?.start()?;
    has_status(&world, Version::Current, agent.pid())?;
    for words in OTHERS {
        let output = world.command(Version::Current, words)?;
        let text = text(&output);
        let is_explained = text.contains("the agent's own binary") && text.contains("(version ");
        // Tables of another layout differ.
        let is_difference = words == ["diff"] && text.contains("not planned, in the kernel");
        let is_fine = output.status.success() || is_explained || is_difference;
        ensure!(is_fine, "{words:?}: {text}\n{}", agent.log());
    }
    agent.stop()
}

/// What earlier versions say cannot be changed any more. They neither crash nor hang.
pub(crate) fn of_the_previous_version() -> Result<()> {
    let world = World::new("")?;
    let agent = world.agent(Version::Current, "")?.start()?;
    has_status(&world, Version::Previous, agent.pid())?;
    for words in OTHERS {
        let output = world.command(Version::Previous, words)?;
        let text = text(&output);
        ensure!(!text.is_empty() && !text.contains("panicked"), "{words:?}: {text}");
        ensure!(matches!(output.status.code(), Some(0..=3)), "{words:?}: {text}");
    }
    ensure!(agent.is_running(), "{}", agent.log());
    agent.stop()
}

/// `shunt status` of each version reads the status of the other.
fn has_status(world: &World, version: Version, process: i32) -> Result<()> {
    let output = world.command(version, &["status"])?;
    let printed = text(&output);
    ensure!(printed.contains(&format!("process {process}")), "{version:?}: {printed}");
    let output = world.command(version, &["status", "--output=json"])?;
    let status: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{version:?}: {}", text(&output)))?;
    assert_eq!(status["process"], process, "{version:?}: {status:#}");
    assert_eq!(status["node"], "node-1", "{version:?}: {status:#}");
    Ok(())
}
