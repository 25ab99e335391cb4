//! The arguments of `shunt run`. A flag that kube-proxy has, too, has kube-proxy's name.

mod kube_proxy;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::config::{GoDuration, parse_bool};

pub use kube_proxy::{ConfigurationFlags, Logging, normalized, without_logging};

/// The arguments that a run and a check have.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Run {
    /// Read objects from this YAML or JSON file or directory, which the agent watches. Can be
    /// given several times.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Vec<PathBuf>,
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    /// Print the version and exit; with `raw`, also the details of the build.
    #[arg(long, value_name = "BOOL|raw", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = version)]
    pub version: Option<Version>,
    /// Own the tables, so that no other process can modify them while the agent runs (Linux 6.9).
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value = "true", hide_possible_values = true,
          action = clap::ArgAction::Set, value_parser = parse_bool)]
    pub own_tables: bool,
    /// How often to check for changes by other processes, where tables cannot be owned; 0: never.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = period)]
    pub drift_check_period: Duration,
    /// How often to look for a running kube-proxy, its leftover rules, and processes on node ports;
    /// 0: once, at the start, and not for processes on node ports.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = period)]
    pub kube_proxy_check_period: Duration,
    /// Export the new connections of each Service port: off or counters.
    #[arg(long, value_name = "off|counters", default_value = "off", hide_possible_values = true)]
    pub service_metrics: ServiceMetrics,
    /// The maximum number of Service ports with metrics of their own.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub service_metrics_limit: usize,
    /// Write sysctls below this directory: the mount point of the node's /proc/sys/net in a
    /// container.
    #[arg(long, value_name = "DIRECTORY", default_value = "/proc/sys/net")]
    pub net_sysctls: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub settings: ConfigurationFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: Logging,
}

fn period(text: &str) -> Result<Duration, String> {
    GoDuration::parse(text)?.get().ok_or_else(|| "negative; write 0 or more".to_owned())
}

/// The metrics of Service ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServiceMetrics {
    /// None.
    Off,
    /// The number of new connections, from the counters in the kernel.
    Counters,
}

/// The form of the version that `--version` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The agent runs as without the flag.
    No,
    /// One line for people.
    Short,
    /// JSON with the details of the build.
    Raw,
}

fn version(text: &str) -> Result<Version, String> {
    match text {
        "raw" => Ok(Version::Raw),
        _ => match parse_bool(text) {
            Ok(true) => Ok(Version::Short),
            Ok(false) => Ok(Version::No),
            Err(_) => Err("write true, false or raw".to_owned()),
        },
    }
}
