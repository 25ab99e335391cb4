//! The command line, and what each command finds out: a room gathers facts, judges them without effects,
//! and writes them as text or JSON; its `command.rs` reads the arguments and prints.

pub mod args;
mod changes;
mod check;
mod cleanup;
mod diff;
pub mod explain;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod history;
mod meta;
mod objects;
mod render;
mod run;
mod services;
mod status;
mod trace;
mod version;
mod with;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

use self::args::Format;
use crate::agent::{Failure, logging};
use crate::serve::escape;

/// Exit code for a configuration or files that cannot be used (`EX_USAGE` of sysexits.h, as
/// documented).
const BAD_INPUT: u8 = 64;
/// Exit code of commands that have found problems and printed them.
const PROBLEMS: u8 = 1;

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = args::Arguments::read(std::env::args_os());
    if !matches!(arguments.command, args::ShuntCommand::Run(_)) {
        logging::tell_people();
    }
    let result = match arguments.command {
        args::ShuntCommand::Run(run) => run::run(&run),
        args::ShuntCommand::Render(render) => render::render(&render),
        args::ShuntCommand::Diff(diff) => diff::diff(&diff),
        args::ShuntCommand::History(history) => history::history(&history),
        args::ShuntCommand::Status(status) => status::status(&status),
        args::ShuntCommand::Check(check) => check::command::check(&check.run, check.output),
        args::ShuntCommand::Explain(explain) => explain::command::explain(&explain),
        args::ShuntCommand::Services(services) => services::command::services(&services),
        args::ShuntCommand::Cleanup(cleanup) => cleanup::cleanup(&cleanup),
        args::ShuntCommand::Trace(trace) => trace::command::trace(&trace),
        args::ShuntCommand::Version(version) => meta::version(&version),
        args::ShuntCommand::Completion(completion) => meta::completion(&completion),
    };
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Result(code)) => ExitCode::from(code),
        Err(failure) => {
            tracing::error!("{failure}");
            match failure {
                Failure::Configuration(_) | Failure::Input(_) => ExitCode::from(BAD_INPUT),
                _ => ExitCode::FAILURE,
            }
        }
    };
    logging::flush();
    code
}

/// Prints a result in this format.
fn output(format: Format, result: &(impl Serialize + Display)) -> anyhow::Result<()> {
    print(&written(format, result)?)
}

/// Writes a result in this format.
fn written(format: Format, result: &(impl Serialize + Display)) -> anyhow::Result<String> {
    Ok(match format {
        Format::Text => result.to_string(),
        Format::Wide => format!("{result:#}"),
        Format::Json => serde_json::to_string_pretty(result).context("cannot write JSON")? + "\n",
        Format::Yaml => {
            let yaml = serde_saphyr::to_string(result).context("cannot write YAML")?;
            format!("{}\n", yaml.trim_end())
        }
    })
}

/// Writes data to stdout, which may be a terminal.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(escape::lines(text).as_bytes()) {
        // The reader of the pipe has closed it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// Joins the first few items of a list, and counts the others.
fn some_of<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    const MAX_SHOWN: usize = 5;
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.len().checked_sub(MAX_SHOWN) {
        None | Some(0) => items.join(", "),
        Some(more) => format!("{} and {more} more", items[..MAX_SHOWN].join(", ")),
    }
}
