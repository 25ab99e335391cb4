//! Arguments of `shunt top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::HiddenLogging;
use super::services::seconds;

/// Arguments of `shunt top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Print one picture after one interval and exit, as without a terminal.
    #[arg(long)]
    pub once: bool,
    /// Print at most this many Services; 0 for all.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
    pub count: usize,
    /// The time between two samples of the counters.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Output format of --once.
    #[arg(long, short, value_enum, default_value_t = TopOutput::Text)]
    pub output: TopOutput,
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: HiddenLogging,
}

/// The output format of `shunt top --once`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopOutput {
    /// A table for people.
    Text,
    /// JSON with every field.
    Json,
}
