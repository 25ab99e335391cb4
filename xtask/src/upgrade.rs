//! `cargo xtask upgrade`: another version of the agent, and the tests that replace it by this one and
//! the other way round.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::command::{cargo, command, output, repository, run, stdout};
use crate::packages::{self, Installer};
use crate::suite;

/// The revision without a release to upgrade from: the last one whose tables have another layout.
const BEFORE_LAYOUT: &str = "9973ad6";

/// Where other versions are kept.
const FOLDER: &str = "target/upgrade";

/// Arguments of `cargo xtask upgrade`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The revision of the other version; by default the newest tag `v*`
    #[arg(long, value_name = "REVISION")]
    from: Option<String>,

    /// Handed to the test program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Build the other version, unless it has been built already, and run the tests.
pub(crate) fn run_tests(
    installer: &Installer,
    arguments: &Arguments,
    not_run: &mut Vec<String>,
) -> Result<()> {
    installer.ensure(&[packages::BUILD])?;
    let revision = arguments.from.clone().map_or_else(newest_release, Ok)?;
    let commit =
        stdout(git(&["rev-parse", "--verify", "--quiet"]).arg(format!("{revision}^{{commit}}")))
            .with_context(|| {
                format!("git has no revision {revision}; in a shallow clone, fetch it first")
            })?;
    let commit = commit.trim();
    println!(
        "the other version: {}",
        stdout(&mut git(&["log", "-1", "--format=%h %as %s", commit]))?.trim()
    );
    let folder = repository().join(FOLDER).join(commit);
    if !folder.join("shunt").is_file() {
        build(commit, &folder)?;
    }
    suite::upgrade(installer, &folder, &arguments.args, not_run)
}

/// The newest release before this revision, or the last revision with another layout.
fn newest_release() -> Result<String> {
    let described = output(&mut git(&["describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^"]))?;
    if described.status.success() {
        return Ok(String::from_utf8_lossy(&described.stdout).trim().to_owned());
    }
    Ok(BEFORE_LAYOUT.to_owned())
}

/// Put the source of a commit into `folder`, and the agent that is made of it.
fn build(commit: &str, folder: &Path) -> Result<()> {
    let source = folder.join("source");
    // What an interrupted run has left.
    let _ = fs::remove_dir_all(&source);
    run(&mut git(&["worktree", "prune"]))?;
    run(git(&["worktree", "add", "--detach"]).arg(&source).arg(commit))?;
    // One folder for all versions, and not this version's, whose agent it would replace.
    let target = repository().join(FOLDER).join("target");
    let mut build = cargo();
    build.args(["build", "--locked", "--package=shunt", "--bin=shunt", "--target-dir"]);
    run(build.arg(&target).current_dir(&source).env("SHUNT_COMMIT", commit))?;
    let built = target.join("debug/shunt");
    ensure!(built.is_file(), "cargo has not built {}", built.display());
    fs::rename(&built, folder.join("shunt")).context("cannot keep the agent")
}

fn git(arguments: &[&str]) -> Command {
    let mut git = command("git");
    git.args(arguments);
    git
}
