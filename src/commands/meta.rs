//! The commands about the program itself: `shunt version` and `shunt completion`.

use clap::{Command, CommandFactory};
use clap_complete::aot::generate;

use super::args::{Arguments, Completion, ShowVersion};
use super::version::Build;
use super::{output, print};
use crate::agent::Failure;

/// Prints the version, the build and the kernel.
pub(super) fn version(arguments: &ShowVersion) -> Result<(), Failure> {
    Ok(output(arguments.output, &Build::default())?)
}

/// Prints the completions of a shell.
pub(super) fn completion(arguments: &Completion) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut visible(&Arguments::command()), NAME, &mut script);
    Ok(print(&String::from_utf8_lossy(&script))?)
}

const NAME: &str = "shunt";

/// Returns a command without its hidden commands and flags, which no shell should offer.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(visible);
    Command::new(command.get_name().to_owned())
        .disable_help_subcommand(true)
        .about(command.get_about().cloned().unwrap_or_default())
        .args(arguments)
        .subcommands(commands)
}
