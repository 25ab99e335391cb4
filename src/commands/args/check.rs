//! Arguments of `shunt check`.

use clap::Args;

use super::{Format, Run};

/// Arguments of `shunt check`: those of `shunt run`, so that it judges the same settings.
#[derive(Debug, Args)]
pub struct Check {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}
