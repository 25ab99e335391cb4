//! The command line, with its help. Names of flags are kube-proxy's where it has them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::LogFormat;

/// shunt: Kubernetes Services on nftables, without a binary in between.
#[derive(Debug, Parser)]
#[command(version, about, disable_help_subcommand = true, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep the node's rules equal to the cluster's Services, until stopped.
    Run(Run),
    /// Print the ruleset that would be programmed, as nft would list it. Needs no kernel.
    Render(Render),
    /// Remove everything that shunt has programmed, in one transaction.
    Cleanup(Cleanup),
}

/// Arguments of `shunt run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Take objects from the API server that this kubeconfig names. Without it and --manifests: the
    /// one of clientConnection.kubeconfig, or the one of the cluster that we run in as a Pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The URL of the API server, if it is not the one that the kubeconfig or the Pod's environment
    /// names.
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Read objects from this file or directory of YAML or JSON; a directory is watched. Can be
    /// given several times.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Vec<PathBuf>,
    /// Program once and exit: 0 if the kernel holds what was planned.
    #[arg(long)]
    pub once: bool,
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub settings: Settings,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: Logging,
}

/// Arguments of `shunt render`.
#[derive(Debug, Args)]
pub struct Render {
    /// Read objects from this file or directory of YAML or JSON. Can be given several times.
    #[arg(long, value_name = "PATH", required = true)]
    pub manifests: Vec<PathBuf>,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Output::Nft)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub settings: Settings,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: Logging,
}

/// Arguments of `shunt cleanup`.
#[derive(Debug, Args)]
pub struct Cleanup {
    /// Remove what kube-proxy has left too: its nftables tables, and its chains in the tables of
    /// iptables-nft.
    #[arg(long)]
    pub kube_proxy: bool,
    /// With --kube-proxy: leave shunt's own tables, so that Services go on working.
    #[arg(long, requires = "kube_proxy")]
    pub keep_own: bool,
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: Logging,
}

/// How `shunt render` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// In the syntax of nft.
    Nft,
    /// As JSON: one object per frontend.
    Json,
}

/// What the configuration file says too. With `--config` the file counts, except for
/// `--hostname-override`.
#[derive(Debug, Clone, Default, Args)]
pub struct Settings {
    /// A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) in YAML or JSON.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The name of our Node; the host name if not given.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// The node's address, if it is not to be taken from its Node.
    #[arg(long, value_name = "ADDRESS")]
    pub bind_address: Option<String>,
    /// Accepted for kube-proxy's sake: shunt programs nftables, whatever it says.
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// Masquerade all traffic to ClusterIPs.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub masquerade_all: Option<bool>,
    /// The prefixes of pod addresses, separated by commas: traffic from elsewhere is masqueraded.
    #[arg(long, value_name = "CIDRS")]
    pub cluster_cidr: Option<String>,
    /// How to tell traffic of local pods: ClusterCIDR, NodeCIDR, BridgeInterface or
    /// InterfaceNamePrefix.
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// With --detect-local-mode=BridgeInterface: the bridge.
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// With --detect-local-mode=InterfaceNamePrefix: the prefix.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Where NodePorts are offered: CIDRs separated by commas, or `primary`.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// Where to serve /healthz and /livez.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub healthz_bind_address: Option<String>,
    /// The least time between two commits, as in 1s; 0s for none.
    #[arg(long = "iptables-min-sync-period", value_name = "DURATION")]
    pub min_sync_period: Option<String>,
    /// How long a failed or waiting sync may take before the agent counts as unhealthy, halved.
    #[arg(long = "iptables-sync-period", value_name = "DURATION")]
    pub sync_period: Option<String>,
}

/// How to log. Counts also beside a configuration file.
#[derive(Debug, Clone, Args)]
pub struct Logging {
    /// text for people, json for collectors.
    #[arg(long, value_parser = log_format, value_name = "text|json")]
    pub logging_format: Option<LogFormat>,
    /// How much: 2 is usual, 4 for debugging, 6 and more for everything.
    #[arg(short = 'v', long = "v", value_name = "LEVEL")]
    pub verbosity: Option<u8>,
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("write text or json".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn flags_are_taken_as_kube_proxy_takes_them() {
        let parse = |words: &str| Arguments::try_parse_from(words.split(' ')).map(|a| a.command);
        let Ok(Command::Run(run)) = parse(
            "shunt run --masquerade-all --cluster-cidr=10.0.0.0/8 --hostname-override n -v 4",
        ) else {
            panic!("not parsed");
        };
        assert_eq!(run.settings.masquerade_all, Some(true));
        assert_eq!(run.settings.cluster_cidr.as_deref(), Some("10.0.0.0/8"));
        assert_eq!(run.logging.verbosity, Some(4));
        assert!(parse("shunt run --masquerade-all=false --v=2").is_ok());
        assert!(parse("shunt run --no-such-flag").is_err());
        assert!(parse("shunt").is_err());
        assert!(parse("shunt cleanup --kube-proxy --keep-own").is_ok());
        assert!(parse("shunt cleanup --keep-own").is_err());
    }
}
