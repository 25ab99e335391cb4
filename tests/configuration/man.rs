//! Writes the man pages of the program and of each command: `cargo run --example man DIRECTORY`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use shunt::commands::args::Arguments;

const NAME: &str = "shunt";

#[allow(dead_code)]
fn main() -> anyhow::Result<()> {
    let directory = std::env::args_os().nth(1).context("give the directory for the pages")?;
    write(Path::new(&directory))
}

/// Writes the pages to a directory that exists.
pub(crate) fn write(directory: &Path) -> anyhow::Result<()> {
    let program = Arguments::command().name(NAME);
    let commands: Vec<Command> =
        program.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    page(&program, NAME.to_owned(), directory)?;
    for command in commands {
        let name = format!("{NAME}-{}", command.get_name());
        let command = command.bin_name(format!("{NAME} {}", &name[NAME.len() + 1..]));
        page(&command, name, directory)?;
    }
    Ok(())
}

fn page(command: &Command, name: String, directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(format!("{name}.1"));
    let title = name.to_uppercase();
    let mut text = Vec::new();
    Man::new(command.clone().display_name(name))
        .title(title)
        .source(concat!("shunt ", env!("CARGO_PKG_VERSION")))
        .manual(NAME)
        .render(&mut text)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("cannot write the man page {}", path.display()))
}
