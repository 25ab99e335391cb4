//! Arguments of `shunt services`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Format, ObjectArguments};

/// Arguments of `shunt services`.
#[derive(Debug, Args)]
pub struct Services {
    /// Show one Service, or one of its ports by name or number, with its endpoints. The namespace
    /// defaults to --namespace, else to "default".
    #[arg(value_name = "[NAMESPACE/]NAME[:PORT]")]
    pub name: Option<String>,
    /// Show the Services of this namespace only.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Output format; `wide` is a table with more columns.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// Refresh every two seconds, or every SECONDS, and show the rate of new connections.
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "2", value_parser = seconds, conflicts_with_all = ["manifests", "with", "at"])]
    pub watch: Option<Duration>,
    /// Show only frontends whose state is not ok.
    #[arg(long)]
    pub problems: bool,
    /// How to sort the Services, and the frontends of each.
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    pub sort: Sort,
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub objects: ObjectArguments,
}

/// Reads a number of seconds, at least 0.1.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse().ok().map(|seconds: f64| seconds.max(0.1));
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "write a number of seconds".to_owned())
}

/// The order of Services, and of the frontends of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By namespace and name, and in the order of `spec.ports`.
    Name,
    /// Most new connections per second first, which needs --watch; then most connections.
    Rate,
    /// Most new connections first.
    Connections,
}
