//! `cargo xtask`: everything that is done with this repository besides editing it.
//!
//! Builds on a machine that has Rust and a C linker and nothing else, because it is what installs
//! the rest. It therefore knows the agent only as a program to build and run.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool: what it prints is what it is for"
)]

mod agent;
mod chart;
mod ci;
mod cluster;
mod command;

mod demo;
mod image;
mod packages;
mod privilege;
mod release;
mod site;
mod style;
mod suite;
mod tidy;
mod upgrade;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::packages::Installer;
use crate::style::Style;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    /// Only name the system packages that are missing, and fail if there are any
    #[arg(long, global = true)]
    no_install: bool,

    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the system packages that building, testing and the demo need
    Setup,
    /// Run every test of the workspace: as root, or in a user namespace
    Test {
        /// Handed to `cargo test`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Check licences, file lengths, addresses and stray paths
    Tidy,
    /// Run the agent for minutes under load, with everything that can happen to a node at once: as root,
    /// or in a user namespace
    Soak {
        /// For how long
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Repeat a run: the number that it printed
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Run the benchmarks: as root, or in a user namespace
    Bench {
        /// Write the figures into docs/benchmarks.md, docs/plots and README.md; sections that were not
        /// run keep theirs
        #[arg(long)]
        docs: bool,
        /// Take the figures of an earlier run, a file of `--write-json`
        #[arg(long, value_name = "FILE", requires = "docs")]
        from: Option<PathBuf>,
        /// Sections (beside, churn, path; an unknown name prints all), sizes (1000x10), and
        /// `--write-json FILE` for figures with their units
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Watch shunt balance connections in a small cluster of network namespaces
    Demo {
        /// Skip the build, and run in the network namespace we are in
        #[arg(long, hide = true)]
        agent: Option<PathBuf>,
    },
    /// Make the container image of the agent with buildah: as root
    Image,
    /// Build, start and pack the files of a version, with their digests
    Release(release::Arguments),
    /// Draw the picture of `shunt explain` in docs/pictures, from a real run
    Pictures,
    /// Build the pages of the repository as a site, and check its links
    Site,
    /// Start Kubernetes on this machine, with shunt, and run upstream's tests: as root
    Cluster(cluster::Arguments),
    /// Boot distribution kernels in QEMU and run the kernel and packet tests there
    VmTest(vm::Arguments),
    /// Make the image and run it in containerd as a kubelet does: as root
    ContainerTest {
        /// Handed to the test program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build another version, upgrade from it and downgrade to it, with traffic: as root, or in a user
    /// namespace
    Upgrade(upgrade::Arguments),
    /// Render the Helm chart and the kustomizations again, after changing them; needs helm and kubectl
    Chart,
    /// Run every check that a change has to pass
    Ci,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let installer = Installer { only_print: cli.no_install };
    let outcome = match &cli.task {
        Task::Setup => installer
            .ensure(packages::ALL)
            .map(|()| println!("all system packages that shunt needs are installed")),
        Task::Test { args } => with_not_run(|not_run| suite::test(&installer, args, not_run)),
        Task::Tidy => tidy::run(),
        Task::Soak { minutes, seed } => suite::soak(&installer, *minutes, *seed),
        Task::Bench { docs: true, from: Some(file), .. } => suite::write_docs(file),
        Task::Bench { docs: true, args, .. } => suite::bench_for_docs(&installer, args),
        Task::Bench { args, .. } => suite::bench(&installer, args),
        Task::Demo { agent: None } => demo::prepare(&installer),
        Task::Demo { agent: Some(agent) } => demo::run(agent),
        Task::Image => agent::build(&installer).and_then(|agent| image::run(&installer, &agent)),
        Task::Release(arguments) => release::run(&installer, arguments),
        Task::Pictures => suite::pictures(&installer),
        Task::Site => site::run(),
        Task::Cluster(arguments) => cluster::cluster(&installer, arguments),
        Task::VmTest(arguments) => vm::run(&installer, arguments),
        Task::ContainerTest { args } => with_not_run(|not_run| {
            image::run(&installer, &agent::build(&installer)?)?;
            suite::container(&installer, args, not_run)
        }),
        Task::Upgrade(arguments) => {
            with_not_run(|not_run| upgrade::run_tests(&installer, arguments, not_run))
        }
        Task::Chart => chart::render(),
        Task::Ci => ci::run(&installer),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Run tests, and say last which were not run.
fn with_not_run(tests: impl FnOnce(&mut Vec<String>) -> Result<()>) -> Result<()> {
    let mut not_run = Vec::new();
    let outcome = tests(&mut not_run);
    suite::report_not_run(&not_run, Style::of_stdout());
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_name_tasks_that_exist() {
        use clap::CommandFactory as _;
        let command = Cli::command();
        let (mut tasks, mut faults) = (0, Vec::new());
        for path in tidy::tracked_files().unwrap().iter().filter(|path| path.ends_with(".md")) {
            // A page that was deleted, but not committed so.
            let Ok(text) = command::repository_file(path) else { continue };
            let text = String::from_utf8(text).unwrap();
            for rest in text.split("cargo xtask ").skip(1) {
                let word = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next();
                let word = word.unwrap_or_default();
                tasks += 1;
                if !matches!(word, "" | "--help") && command.find_subcommand(word).is_none() {
                    faults.push(format!("{path}: cargo xtask {word}"));
                }
            }
        }
        assert!(faults.is_empty(), "{faults:?}");
        assert!(tasks > 40, "{tasks} tasks");
    }
}
