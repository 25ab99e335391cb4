//! The command line, with its help. A flag that kube-proxy has, too, has kube-proxy's name.

mod check;
mod diff;
mod explain;
mod history;
mod meta;
mod services;
mod trace;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use shunt_core::model::ObjectName;

use crate::agent::args::{ConfigurationFlags, Logging, Run, normalized, without_logging};
use crate::agent::{logging, netns};
use crate::config::parse_bool;
use crate::serve::status::Time;

pub use check::Check;
pub use diff::Diff;
use history::moment;

pub use explain::{Destination, Explain, Probes};
pub use history::History;
pub use meta::{Completion, ShowVersion};
pub use services::{Services, Sort};
pub use trace::Trace;

/// shunt: Kubernetes Services on nftables, programmed over netlink.
#[derive(Debug, Parser)]
#[command(version, about, disable_help_subcommand = true, max_term_width = 100)]
pub struct Arguments {
    /// The command to run.
    #[command(subcommand)]
    pub command: ShuntCommand,
}

impl Arguments {
    /// Reads the command line, or prints what it asks for and exits. `--help` is without the flags of
    /// kube-proxy, and `--help=all` with them.
    pub(super) fn read(words: impl Iterator<Item = OsString>) -> Arguments {
        let (mut words, mut command) = (normalized(words).collect::<Vec<_>>(), Self::command());
        if let Some(all) = words.iter_mut().find(|word| *word == "--help=all") {
            *all = "--help".into();
            let shown = |flag: Arg| flag.hide_long_help(false);
            command = command.mut_subcommands(|command| command.mut_args(shown));
        }
        Self::from_arg_matches(&command.get_matches_from(words)).unwrap_or_else(|it| it.exit())
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum ShuntCommand {
    /// Keep the node's rules in step with the cluster's Services, until stopped.
    Run(RunOrTask),
    /// Print the ruleset that would be programmed, in nft's syntax.
    Render(Render),
    /// Compare the plan with the tables in the kernel, writing nothing; exit with 1 if they
    /// differ, with 2 if they could not be compared.
    Diff(Diff),
    /// Show the state of the running agent, problems first; fail if there are problems.
    Status(Status),
    /// Check whether shunt can run on this node, with its kernel and cluster; fail if not.
    Check(Check),
    /// Explain what happens to a connection to a Service, and why.
    Explain(Explain),
    /// Show Services with their frontends, endpoints, counters and states.
    Services(Services),
    /// Show what changed (endpoints, Services, conflicts, repairs, the configuration), and when it
    /// reached the kernel.
    History(History),
    /// Remove everything that shunt has programmed, in one transaction.
    Cleanup(Cleanup),
    /// Follow real packets through all rules, and show where they end up.
    Trace(Trace),
    /// Print the version, the build and the kernel.
    Version(ShowVersion),
    /// Print a script that completes the commands and flags of shunt in a shell.
    Completion(Completion),
}

/// The objects of a command.
#[derive(Debug, Args)]
#[group(skip)]
pub struct ObjectArguments {
    /// Plan the objects in this YAML or JSON file or directory, with the flags of this command. Can
    /// be given several times. The default is the objects of the running agent.
    #[arg(long, value_name = "PATH")]
    pub manifests: Vec<PathBuf>,
    /// Also plan the objects in this file (`-` for stdin) or directory, as after `kubectl apply`, and
    /// read nothing from the kernel. Can be given several times.
    #[arg(long, value_name = "PATH")]
    pub with: Vec<PathBuf>,
    /// Plan the objects as they were at this time, from the history of the running agent or of a
    /// --manifests file that `shunt history -o json` wrote, and read nothing from the kernel.
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "with")]
    pub at: Option<Time>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub settings: ConfigurationFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: Logging,
}

/// Arguments of `shunt run`: the agent, or a task in place of it.
#[derive(Debug, Args)]
pub struct RunOrTask {
    /// Program once and exit, with 0 if the kernel accepted every rule.
    #[arg(long)]
    pub once: bool,
    /// Write the effective configuration to this file, with a value for every field, and exit.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Remove everything that shunt has programmed, like `shunt cleanup`, and exit.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value = "false", hide_default_value = true,
          hide_possible_values = true, action = clap::ArgAction::Set, value_parser = parse_bool)]
    pub cleanup: bool,
    /// Set the sysctls, which needs root, and exit.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value = "false", hide_default_value = true,
          hide_possible_values = true, action = clap::ArgAction::Set, value_parser = parse_bool)]
    pub init_only: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}

/// Arguments of `shunt render`.
#[derive(Debug, Args)]
pub struct Render {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub objects: ObjectArguments,
}

/// Where a command works, and how it logs.
#[derive(Debug, Args)]
#[group(skip)]
#[command(mut_args(without_logging))]
pub struct Here {
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: Logging,
}

impl Here {
    /// Starts the log, and moves this thread into the network namespace.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        logging::start_with(&self.logging);
        netns::enter(self.netns.as_deref())
    }
}

/// Arguments of `shunt status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// Exit with 0 once the agent of this container has programmed the rules: for a startup probe.
    #[arg(long, conflicts_with = "output")]
    pub startup_probe: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub here: Here,
}

/// The output format of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    Text,
    /// Text with more details, where there are any.
    #[value(hide = true)]
    Wide,
    /// JSON with every field.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Format {
    pub(super) fn is_text(self) -> bool {
        matches!(self, Format::Text | Format::Wide)
    }
}

/// Arguments of `shunt cleanup`.
#[derive(Debug, Args)]
pub struct Cleanup {
    /// Also remove the leftovers of kube-proxy: its nftables tables, its chains in the tables of
    /// iptables-nft, and the services and the interface of its IPVS mode.
    #[arg(long)]
    pub kube_proxy: bool,
    /// With --kube-proxy: keep shunt's own tables, so that Services keep working.
    #[arg(long, requires = "kube_proxy")]
    pub keep_own: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub here: Here,
}

/// Splits `namespace/name:port`. Without a namespace it is this one, or as for kubectl `default`.
pub(super) fn service_port<'a>(
    text: &'a str,
    namespace: Option<&str>,
) -> anyhow::Result<(ObjectName, Option<&'a str>)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let (namespace, name) = name.split_once('/').unwrap_or((namespace.unwrap_or("default"), name));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(anyhow!(
            "\"{text}\" is not the name of a Service: write NAME, NAMESPACE/NAME or \
             NAMESPACE/NAME:PORT, or --to ADDRESS:PORT for a destination"
        ));
    }
    Ok((ObjectName::new(namespace, name), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    fn run(words: &str) -> Result<RunOrTask, String> {
        let words = normalized(words.split(' ').map(Into::into));
        match Arguments::try_parse_from(words).map(|arguments| arguments.command) {
            Ok(ShuntCommand::Run(run)) => Ok(run),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn flags_are_parsed_like_kube_proxys() {
        for words in [
            "--masquerade-all --cluster-cidr=10.0.0.0/8 --hostname-override n -v 4",
            "--masquerade-all=false --v=2",
            "--masquerade-all=T --profiling=0 -v=10 -v2",
            "--oom-score-adj -998 --conntrack-min=0",
            "--feature-gates=A=true,B=false --vmodule=a=1,b*=2",
            "--cluster_cidr=10.0.0.0/8 --boot_id_file /var/log_a --log_flush_frequency=2s",
            "--cleanup --init-only=false --version=raw",
            "--nodeport-addresses=10.0.0.0/8 --nodeport-addresses=10.0.0.0/8",
        ] {
            let run = run(&format!("shunt run {words}"));
            assert!(run.is_ok(), "{words}: {run:?}");
        }
        let given = run("shunt run --boot_id_file=/var/log_a --init-only").expect("arguments");
        assert!(format!("{given:?}").contains("/var/log_a"), "{given:?}");
        assert!(given.init_only && !given.cleanup);
    }

    #[test]
    fn unknown_flags_and_invalid_values_are_named() {
        for (words, expected) in [
            ("--no-such-flag", "unexpected argument '--no-such-flag'"),
            ("--hostname-overide=x", "a similar argument exists: '--hostname-override'"),
            ("--masquerade-all=yes", "write true or false"),
            ("--iptables-sync-period=soon", "not a duration such as 30s"),
            ("--iptables-sync-period=0s", "must be longer than zero"),
            ("--oom-score-adj=low", "not a number"),
            ("--logging-format=xml", "write text or json"),
            ("--feature-gates=A", "not a list such as Name=true"),
            ("--version=new", "write true, false or raw"),
            ("--cluster-cidr", "a value is required"),
            ("more", "unexpected argument 'more'"),
        ] {
            let error = run(&format!("shunt run {words}")).expect_err(words);
            assert!(error.contains(expected), "{words}: {error}");
        }
        assert!(run("shunt").is_err());
    }
}
