//! Arguments of the commands about the program itself: `shunt version` and
//! `shunt completion`.

use clap::Args;
use clap_complete::aot::Shell;

use super::Format;

/// Arguments of `shunt version`.
#[derive(Debug, Args)]
pub struct ShowVersion {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
}

/// Arguments of `shunt completion`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bash    source <(shunt completion bash)
  zsh     shunt completion zsh > \"${fpath[1]}/_shunt\"
  fish    shunt completion fish > ~/.config/fish/completions/shunt.fish")]
pub struct Completion {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}
