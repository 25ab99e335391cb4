//! Arguments of `shunt diff`.

use std::path::PathBuf;

use clap::Args;

use super::{Format, Logging, Moment, Settings};

/// Arguments of `shunt diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// Plan the objects in this file or directory of YAML or JSON, by the flags of this command.
    /// Can be given several times. The default is the plan of the running agent.
    #[arg(long, value_name = "PATH")]
    pub manifests: Vec<PathBuf>,
    /// Compare the plan of now with the plan after `kubectl apply` of this file (`-` for stdin), and
    /// exit with 3 if a frontend would lose service. Can be given several times.
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,
    /// Compare the plan of this time with that of now, both as `history` has them, of the running
    /// agent or of the file of --manifests that `shunt history -o json` wrote.
    #[arg(long, value_name = "TIME", conflicts_with = "with")]
    pub at: Option<Moment>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
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
