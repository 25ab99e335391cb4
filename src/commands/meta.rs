//! The commands about the program itself: `shunt version`, `shunt completion` and `shunt man`.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::aot::generate;
use clap_mangen::Man as Page;

use super::args::{Arguments, Completion, Man, ShowVersion};
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

/// Writes the man pages: one for the program and one for each command.
pub(super) fn man(arguments: &Man) -> Result<(), Failure> {
    let program = Arguments::command().name(NAME);
    let commands: Vec<Command> =
        program.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    page(&program, NAME.to_owned(), &arguments.directory)?;
    for command in commands {
        let name = format!("{NAME}-{}", command.get_name());
        let command = command.bin_name(format!("{NAME} {}", &name[NAME.len() + 1..]));
        page(&command, name, &arguments.directory)?;
    }
    Ok(())
}

fn page(command: &Command, name: String, directory: &Path) -> Result<(), anyhow::Error> {
    let path = directory.join(format!("{name}.1"));
    let title = name.to_uppercase();
    let command = command.clone().display_name(name);
    let mut text = Vec::new();
    Page::new(command)
        .title(title)
        .source(concat!("shunt ", env!("CARGO_PKG_VERSION")))
        .manual("shunt")
        .render(&mut text)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("cannot write the man page {}", path.display()))
}
