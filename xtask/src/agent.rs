//! The agent as it is released.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::command::{cargo, command, find, repository, run, stdout};
use crate::packages::{self, Installer};

/// Build the agent for release; the path of its binary, which starts and knows its commit.
pub(crate) fn build(installer: &Installer) -> Result<PathBuf> {
    installer.ensure(&[packages::BUILD])?;
    let mut build = cargo();
    // Puts the list of crates into a release.
    if find("cargo-auditable").is_some() {
        build.arg("auditable");
    }
    build.args(["build", "--release", "--locked", "--package", "shunt"]);
    // Without it `shunt version` does not know the commit.
    let commit = commit()?;
    if let Some(commit) = &commit {
        build.env("SHUNT_COMMIT", commit);
    }
    run(&mut build)?;
    let agent = built("release/shunt")?;
    let said = stdout(command(&agent).arg("version"))?;
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    ensure!(
        said.contains(&format!("commit {commit}")),
        "the agent was not built from commit {commit}: {said}"
    );
    Ok(agent)
}

/// What cargo has just built, such as `release/shunt`, beside the folder that it built us into: that folder
/// may be set in more places than one could ask.
pub(crate) fn built(path: &str) -> Result<PathBuf> {
    let xtask = env::current_exe().context("cannot find the running program")?;
    let mut folders = xtask.ancestors().skip(1).filter(|folder| !folder.ends_with("deps"));
    let target =
        folders.next().and_then(Path::parent).context("xtask is not in a target folder")?;
    let program = target.join(path);
    ensure!(program.is_file(), "cargo has not built {}", program.display());
    Ok(program)
}

/// Returns the commit, if it is known.
pub(crate) fn commit() -> Result<Option<String>> {
    if let Some(commit) = env::var("SHUNT_COMMIT").ok().filter(|commit| !commit.is_empty()) {
        return Ok(Some(commit));
    }
    if !in_git() {
        return Ok(None);
    }
    let described =
        stdout(&mut git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]));
    Ok(Some(
        described.context("git does not know the commit; give SHUNT_COMMIT")?.trim().to_owned(),
    ))
}

pub(crate) fn in_git() -> bool {
    repository().join(".git").exists()
}

pub(crate) fn git(arguments: &[&str]) -> Command {
    let mut git = command("git");
    git.args(arguments);
    git
}
