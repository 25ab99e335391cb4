//! `cargo xtask cluster`: Kubernetes on this machine, with shunt or kube-proxy, and upstream's tests.
//!
//! Owns the build, the packages and the page with the results. Namespaces, nodes and images are the work of
//! `tests/cluster/cluster.sh`, which runs without cargo, too.

mod conformance;

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};

use crate::agent;
use crate::command::{command, repository, run, stdout};
use crate::packages::{self, Installer};

const SCRIPT: &str = "tests/cluster/cluster.sh";
/// The results, and the page about them.
const RESULTS: [&str; 2] = ["docs/conformance.json", "docs/conformance.md"];

/// Arguments of `cargo xtask cluster`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Tells clusters of one machine apart
    #[arg(long, global = true, default_value = "cluster")]
    name: String,
    /// The number of nodes, in three zones
    #[arg(long, global = true, default_value_t = 3)]
    nodes: u8,
    /// The address families of pods and Services
    #[arg(long, global = true, default_value = "dual")]
    families: Families,
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a cluster, in place of the one that runs
    Up {
        #[arg(default_value = "shunt")]
        proxy: Proxy,
    },
    /// Start a cluster, run upstream's tests of networks and Services, and write docs/conformance.md
    E2e {
        #[arg(default_value = "shunt")]
        proxy: Proxy,
        /// Only specs whose name has this regular expression; outcomes of others stay
        #[arg(long)]
        focus: Option<String>,
    },
    /// Move a cluster from kube-proxy to shunt and back by the guide for kubeadm, with traffic
    Guide,
    /// Remove everything that belongs to the cluster
    Down,
}

/// What implements Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Proxy {
    Shunt,
    KubeProxy,
}

/// Address families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Families {
    Dual,
    Ipv4,
    Ipv6,
}

/// The word on the command line, by which the script and the results know it, too.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
}

pub(crate) fn cluster(installer: &Installer, arguments: &Arguments) -> Result<()> {
    let script = |words: &[&str]| {
        let mut script = command(repository().join(SCRIPT));
        script.args(words).env("SHUNT_CLUSTER", &arguments.name);
        script.env("SHUNT_CLUSTER_NODES", arguments.nodes.to_string());
        script.env("SHUNT_CLUSTER_FAMILIES", word(arguments.families));
        script
    };
    match &arguments.task {
        Task::Down => run(&mut script(&["down"])),
        Task::Up { proxy } => start(installer, script(&["up", &word(*proxy)])),
        Task::Guide => {
            start(installer, script(&["up", "kube-proxy"]))?;
            run(&mut script(&["guide"]))
        }
        Task::E2e { proxy, focus } => {
            start(installer, script(&["up", &word(*proxy)]))?;
            let report = env::temp_dir().join(format!("shunt-e2e-{}.json", arguments.name));
            let mut tests = script(&["e2e", &word(*proxy)]);
            // Failures are in the report, too.
            let outcome = run(tests.arg(&report).args(focus));
            let text = fs::read_to_string(&report).context("the tests left no report")?;
            write(*proxy, arguments.families, &text, focus.is_some())?;
            outcome
        }
    }
}

/// Builds the agent and starts a cluster with it.
fn start(installer: &Installer, mut script: Command) -> Result<()> {
    installer.ensure(&[packages::NAMESPACES, packages::TEST, packages::CLUSTER])?;
    run(script.env("SHUNT", agent::build(installer)?))
}

/// Puts the results of one run beside those of others.
fn write(proxy: Proxy, families: Families, report: &str, is_part: bool) -> Result<()> {
    let versions = match proxy {
        Proxy::Shunt => {
            let commit = stdout(command("git").args(["rev-parse", "--short", "HEAD"]))?;
            format!("{} ({})", env!("CARGO_PKG_VERSION"), commit.trim())
        }
        Proxy::KubeProxy => "1.36.2, nftables".to_owned(),
    };
    let old = fs::read_to_string(repository().join(RESULTS[0])).unwrap_or_default();
    let said = |program: &mut Command| anyhow::Ok(stdout(program)?.trim().to_owned());
    let results = conformance::Results {
        date: said(command("date").args(["--utc", "+%F"]))?,
        version: versions,
        kernel: said(command("uname").arg("-r"))?,
        ..Default::default()
    };
    let files = conformance::merge(
        &old,
        &format!("{} {}", word(families), word(proxy)),
        results,
        report,
        is_part,
    )?;
    for (path, content) in RESULTS.iter().zip(files) {
        fs::write(repository().join(path), content)
            .with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}
