//! `cargo xtask ci`: everything that must pass before a change is taken, in the order in which a
//! mistake is found soonest.

use std::cell::RefCell;
use std::env;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::unistd::geteuid;

use crate::command::{cargo, command, run as run_command};
use crate::packages::{self, Installer};
use crate::style::Style;
use crate::{agent, chart, demo, image, site, suite, tidy, vm};

/// A step: its name, and what it does.
type Step<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>);

/// What `cargo clippy` tells the driver of clippy, which it runs in the compiler's place.
const CLIPPY_ARGS: (&str, &str) = ("CLIPPY_ARGS", "--deny=warnings__CLIPPY_HACKERY__");

/// Run all steps, also after one that fails.
pub(crate) fn run(installer: &Installer) -> Result<()> {
    if env::var_os(CLIPPY_ARGS.0).is_none() {
        // All that follows is built and linted at once: `cargo clippy` would compile it all once more.
        let xtask = env::current_exe().context("cannot find the running program")?;
        let mut linted = command(xtask);
        linted.arg("ci").env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
        return run_command(linted.env(CLIPPY_ARGS.0, CLIPPY_ARGS.1));
    }
    let not_run = RefCell::new(Vec::new());
    let container = || {
        // Without root, the tests say so.
        if geteuid().is_root() {
            // The agent of the tests: the release workflow builds another, which takes minutes.
            image::run(installer, &agent::built("debug/shunt")?)?;
        }
        suite::container(installer, &[], &mut not_run.borrow_mut())
    };
    let steps: Vec<Step<'_>> = vec![
        ("packages", Box::new(|| installer.ensure(packages::ALL))),
        ("format", Box::new(|| run_command(cargo().args(["fmt", "--all", "--check"])))),
        ("tidy", Box::new(tidy::run)),
        ("chart", Box::new(chart::check)),
        ("clippy", Box::new(|| run_command(&mut clippy()))),
        ("docs", Box::new(|| run_command(&mut docs()))),
        ("site", Box::new(site::run)),
        ("test", Box::new(|| suite::test(installer, &[], &mut not_run.borrow_mut()))),
        ("demo", Box::new(|| demo::prepare(installer))),
        ("vm-test", Box::new(|| vm::run(installer, &vm::Arguments::of_ci()))),
        ("container", Box::new(container)),
    ];
    let outcome = report(steps, Style::of_stdout());
    suite::report_not_run(&not_run.borrow(), Style::of_stdout());
    outcome
}

fn clippy() -> Command {
    let mut build = cargo();
    build.args(["build", "--all-targets", "--locked"]);
    build
}

fn docs() -> Command {
    let mut docs = cargo();
    docs.args(["doc", "--no-deps", "--document-private-items"])
        .args(["--package=shunt-core", "--package=nfnetlink"])
        // These pages include the private items, so links to those are correct.
        .env("RUSTDOCFLAGS", "--deny=warnings --allow=rustdoc::private-intra-doc-links");
    docs
}

/// Run the steps, time them, and sum up.
fn report(steps: Vec<Step<'_>>, style: Style) -> Result<()> {
    let (mut summary, mut failures) = (String::new(), String::new());
    for (name, step) in steps {
        println!("{}", style.bold(format!("==> {name}")));
        let started = Instant::now();
        let outcome = step();
        let took = started.elapsed().as_secs_f64();
        let verdict = if outcome.is_ok() { style.green("ok") } else { style.red("failed") };
        summary += &format!("  {name:<10} {took:>7.1} s  {verdict}\n");
        if let Err(error) = outcome {
            println!("{}", style.red(format!("{name} failed: {error:#}")));
            failures += &format!("\n{name}: {error:#}");
        }
    }
    println!("\n{}\n{summary}", style.bold("==> summary"));
    ensure!(failures.is_empty(), "not all steps passed{failures}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;

    use anyhow::bail;

    #[test]
    fn steps_after_a_failure_run_and_all_failures_are_named() {
        let reached = Cell::new(0);
        let step = || {
            reached.set(reached.get() + 1);
            Ok(())
        };
        let steps: Vec<Step<'_>> = vec![
            ("one", Box::new(step)),
            ("two", Box::new(|| bail!("no luck"))),
            ("three", Box::new(step)),
            ("four", Box::new(|| bail!("none either"))),
        ];
        let error = report(steps, Style::of_stdout()).unwrap_err();
        assert_eq!(error.to_string(), "not all steps passed\ntwo: no luck\nfour: none either");
        assert_eq!(reached.get(), 2);
    }
}
