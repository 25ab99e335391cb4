//! `cargo xtask pictures`: the pictures of commands in the pages, from real runs.
//!
//! The agent programs nodes of the testbed, and clients connect to Services. Numbers differ from run to
//! run, so nothing compares the pictures with another run.

mod commands;
mod load;
mod svg;
mod terminal;

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::agent;
use crate::command::{repository, run as run_command};
use crate::packages::{Installer, Purpose};
use crate::privilege::Privilege;

/// The folder of the pictures.
const OUTPUT: &str = "docs/pictures";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Skip the build, and run in the network namespace we are in, with this agent
    #[arg(long, hide = true)]
    agent: Option<PathBuf>,
}

/// Makes the pictures. Without an agent, builds it and runs this program once more in a network
/// namespace of its own.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    if let Some(agent) = &arguments.agent {
        return commands::draw(agent);
    }
    installer.ensure(&[Purpose::Build, Purpose::Demo])?;
    let privilege = Privilege::probe()?;
    let xtask = env::current_exe().context("cannot find the program that runs")?;
    run_command(privilege.isolated(&xtask).args(["pictures", "--agent"]).arg(agent::build()?))
}

fn write(name: &str, svg: &str) -> Result<()> {
    let folder = repository().join(OUTPUT);
    fs::create_dir_all(&folder).context(OUTPUT)?;
    let path = folder.join(format!("{name}.svg"));
    fs::write(&path, svg).with_context(|| path.display().to_string())?;
    println!("wrote {OUTPUT}/{name}.svg");
    Ok(())
}
