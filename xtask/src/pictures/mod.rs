//! `cargo xtask pictures`: the pictures of commands and of the dashboard in the pages, from real runs.
//!
//! The agent programs nodes of the testbed, and clients connect to Services. Numbers differ from run to
//! run, so nothing compares the pictures with another run.

mod commands;
mod dashboard;
mod load;
mod svg;
mod terminal;

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::agent;
use crate::command::{cargo, find, repository, run as run_command};
use crate::packages::{Installer, Purpose};
use crate::privilege::Privilege;
use crate::release::sysroot;

/// The folder of the pictures.
const OUTPUT: &str = "docs/pictures";

/// What a picture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// `shunt explain` and `shunt top`
    Commands,
    /// The Grafana dashboard
    Dashboard,
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Make only these pictures
    #[arg(value_enum)]
    only: Option<Subject>,
    /// Skip the build, and run in the network namespace we are in, with these programs: the agent, the
    /// stand-in for an API server, and Prometheus
    #[arg(long, hide = true, num_args = 3)]
    programs: Vec<PathBuf>,
}

/// The programs that pictures are made with.
struct Programs {
    /// The agent as it is released: some figures depend on the build.
    agent: PathBuf,
    /// The stand-in for an API server.
    standin: PathBuf,
    prometheus: PathBuf,
}

impl Arguments {
    fn has(&self, subject: Subject) -> bool {
        self.only.is_none_or(|only| only == subject)
    }
}

impl Programs {
    /// Builds what is of the workspace, and fetches Prometheus unless it is installed. It is unpacked,
    /// not installed: the package would start a server.
    fn prepare() -> Result<Self> {
        let agent = agent::build()?;
        let mut build = cargo();
        build.args(["build", "--quiet", "--locked", "--package", "shunt-fake-apiserver"]);
        run_command(build.args(["--example", "standin"]))?;
        let prometheus = match find("prometheus") {
            Some(installed) => installed,
            None => sysroot::tool("prometheus", None)?.join("usr/bin/prometheus"),
        };
        Ok(Self { agent, standin: agent::program("debug", "examples/standin")?, prometheus })
    }
}

/// Makes pictures.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    match &arguments.programs[..] {
        [agent, standin, prometheus] => {
            let [agent, standin, prometheus] = [agent, standin, prometheus].map(Clone::clone);
            draw(&Programs { agent, standin, prometheus }, arguments)
        }
        _ => prepare(installer, arguments),
    }
}

/// Builds the programs, then runs this program once more in a network namespace of its own.
fn prepare(installer: &Installer, arguments: &Arguments) -> Result<()> {
    installer.ensure(&[Purpose::Build, Purpose::Demo, Purpose::Pictures])?;
    let privilege = Privilege::probe()?;
    let Programs { agent, standin, prometheus } = Programs::prepare()?;
    let xtask = env::current_exe().context("cannot find the program that runs")?;
    let mut command = privilege.isolated(&xtask);
    command.arg("pictures");
    if let Some(only) = arguments.only.and_then(|only| only.to_possible_value()) {
        command.arg(only.get_name());
    }
    command.arg("--programs").args([agent, standin, prometheus]);
    run_command(&mut command)
}

/// Makes the pictures in the namespace we are in.
fn draw(programs: &Programs, arguments: &Arguments) -> Result<()> {
    if arguments.has(Subject::Commands) {
        commands::draw(&programs.agent)?;
    }
    if arguments.has(Subject::Dashboard) {
        write("dashboard", &dashboard::draw(programs)?)?;
    }
    Ok(())
}

fn write(name: &str, svg: &str) -> Result<()> {
    let folder = repository().join(OUTPUT);
    fs::create_dir_all(&folder).context(OUTPUT)?;
    let path = folder.join(format!("{name}.svg"));
    fs::write(&path, svg).with_context(|| path.display().to_string())?;
    println!("wrote {OUTPUT}/{name}.svg");
    Ok(())
}
