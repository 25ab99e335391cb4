//! The agent as it is released.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::command::{cargo, command, find, run};
use crate::release;

/// Build the agent for release; the path of its binary.
pub(crate) fn build() -> Result<PathBuf> {
    run(&mut with_arguments(cargo())?)?;
    built("release/shunt")
}

/// A build for release that goes on beside other work, with the time that this leaves. Ends with its
/// owner.
pub(crate) struct Ahead(Child);

impl Ahead {
    /// Start the build. What it says, [`build`] says again if it fails there, too.
    pub(crate) fn start() -> Result<Self> {
        let build = with_arguments(cargo())?;
        let mut idle = command("nice");
        idle.args(["-n", "19"]).arg(build.get_program()).args(build.get_args());
        for (name, value) in build.get_envs() {
            match value {
                Some(value) => idle.env(name, value),
                None => idle.env_remove(name),
            };
        }
        idle.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(idle.spawn().context("cannot run nice")?))
    }

    /// Wait for the end.
    pub(crate) fn wait(mut self) -> Result<()> {
        self.0.wait().context("cannot wait for the build")?;
        Ok(())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Its compilers end by themselves.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_arguments(mut build: Command) -> Result<Command> {
    // Puts the list of crates into a release.
    if find("cargo-auditable").is_some() {
        build.arg("auditable");
    }
    build.args(["build", "--release", "--locked", "--package", "shunt"]);
    // Without it `shunt version` does not know the commit.
    if let Some(commit) = release::commit()? {
        build.env("SHUNT_COMMIT", commit);
    }
    Ok(build)
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
