//! Arguments of `shunt diff`.

use std::path::PathBuf;

use clap::Args;

use super::{Format, ObjectArguments};

/// Arguments of `shunt diff`.
#[derive(Debug, Args)]
#[command(mut_arg("with", |with| with.help(
    "Compare the current plan with the plan after `kubectl apply` of this file (`-` for stdin), \
     and exit with 3 if a frontend would lose service. Can be given several times"
)), mut_arg("at", |at| at.help(
    "Compare the plan at this time with the latest one, from the history of the running agent or \
     of a --manifests file that `shunt history -o json` wrote; exit with 3 if a frontend has lost \
     service since"
)))]
pub struct Diff {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub objects: ObjectArguments,
}
