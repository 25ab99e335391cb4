//! The agent as it is released.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::command::{cargo, run};
use crate::release::source;

/// Build the agent for release; the path of its binary.
pub(crate) fn build() -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--package", "shunt"]);
    // Without it `shunt version` does not know the commit.
    if let Some(commit) = source::revision()? {
        build.env("SHUNT_COMMIT", commit);
    }
    run(&mut build)?;
    built("release")
}

/// The agent that cargo has just built with this profile, beside the folder that it built us into:
/// that folder may be set in more places than one could ask.
pub(crate) fn built(profile: &str) -> Result<PathBuf> {
    let xtask = env::current_exe().context("cannot find the program that runs")?;
    let mut folders = xtask.ancestors().skip(1).filter(|folder| !folder.ends_with("deps"));
    let target = folders.next().and_then(Path::parent).context("xtask is in no target folder")?;
    let agent = target.join(profile).join("shunt");
    ensure!(agent.is_file(), "cargo has built no {}", agent.display());
    Ok(agent)
}
