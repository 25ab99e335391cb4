//! `cargo xtask test`, `cargo xtask soak` and `cargo xtask bench`: cargo's own runs, with what they
//! need installed and with the rights that talking to a kernel takes.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail};
use nix::unistd::geteuid;

use crate::agent;
use crate::command::{cargo, describe, repository, run};
use crate::image;
use crate::packages::{self, Installer};
use crate::privilege;
use crate::style::Style;

/// The variable that test programs know; see `record_not_run` of `tests/support/testbed`.
const NOT_RUN: &str = "SHUNT_TESTS_NOT_RUN";

/// The variable that says to a test program how many tests run at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// Run every test of the workspace, or those of the packages that `args` select; `args` go to
/// `cargo test`. Adds a line to `not_run` for each program some of whose tests could not run here.
pub(crate) fn test(
    installer: &Installer,
    args: &[String],
    not_run: &mut Vec<String>,
) -> Result<()> {
    let mut tests = prepared(installer)?;
    // To the end: one failure hides no other.
    run_recording(tests.args(["test", "--no-fail-fast"]).args(args), not_run)
}

/// Run the tests in containers with the image of `cargo xtask image`. containerd needs real root; a
/// user namespace would not do.
pub(crate) fn container(
    installer: &Installer,
    args: &[String],
    not_run: &mut Vec<String>,
) -> Result<()> {
    installer.ensure(&[packages::BUILD, packages::CONTAINER])?;
    // Those of a run without an image.
    not_run.retain(|line| !line.contains(" of container: "));
    let mut tests = cargo();
    tests.args(["test", "--test", "container", "--"]).args(args);
    tests.env("SHUNT_IMAGE", repository().join(image::OUTPUT));
    run_recording(&mut tests, not_run)
}

/// Run the tests of an upgrade and a downgrade, with the agent and the files of another version in
/// this folder.
pub(crate) fn upgrade(
    installer: &Installer,
    previous: &Path,
    args: &[String],
    not_run: &mut Vec<String>,
) -> Result<()> {
    let mut tests = prepared(installer)?;
    tests.args(["test", "--test", "upgrade", "--"]).args(args);
    run_recording(tests.env("SHUNT_PREVIOUS", previous), not_run)
}

/// Run tests; the error names all that failed. Adds a line to `not_run` for each program some of whose
/// tests could not run here.
fn run_recording(tests: &mut Command, not_run: &mut Vec<String>) -> Result<()> {
    let file = env::temp_dir().join(format!("shunt-tests-not-run-{}", process::id()));
    let outcome = run_naming_failures(tests.env(NOT_RUN, &file));
    // Without such tests there is no file.
    let lines = fs::read_to_string(&file).unwrap_or_default();
    not_run.extend(lines.lines().map(str::to_owned));
    // Gone with the machine's other temporary files, if not now.
    let _ = fs::remove_file(&file);
    outcome
}

fn run_naming_failures(tests: &mut Command) -> Result<()> {
    let line = describe(tests);
    let mut child =
        tests.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run `{line}`"))?;
    let output = child.stdout.take().context("no output")?;
    let failed = pass_on(BufReader::new(output), io::stdout())?;
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let failed: String = failed.iter().map(|test| format!("\n  {test} FAILED")).collect();
    bail!("`{line}` failed ({status}){failed}");
}

/// Pass the output of test programs on; the names in the lists with which they end.
fn pass_on(mut from: impl BufRead, mut to: impl Write) -> Result<Vec<String>> {
    let (mut failed, mut listed) = (Vec::new(), Vec::new());
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        let text = String::from_utf8_lossy(&line);
        match (text.trim_end(), text.strip_prefix("    ")) {
            (text, _) if text.starts_with("test result: FAILED") => failed.append(&mut listed),
            ("", _) => {}
            (_, Some(name)) => listed.push(name.trim_end().to_owned()),
            // What a failed test printed comes before the list.
            _ => listed.clear(),
        }
        line.clear();
    }
    Ok(failed)
}

/// Say how many tests were not run, and why.
pub(crate) fn report_not_run(not_run: &[String], style: Style) {
    if let Some(tests) = count(not_run) {
        println!("\n{}", style.bold(format!("==> {tests} tests were not run")));
        not_run.iter().for_each(|line| println!("  {line}"));
    }
}

/// How many tests these lines are about, if any. Each starts with a number.
fn count(not_run: &[String]) -> Option<usize> {
    let tests = |line: &String| line.split(' ').next().and_then(|n| n.parse::<usize>().ok());
    let all = not_run.iter().filter_map(tests).sum();
    (all > 0).then_some(all)
}

/// Run the soak for so many minutes, in the order of events that follows from `seed`, if it is given.
pub(crate) fn soak(installer: &Installer, minutes: u64, seed: Option<u64>) -> Result<()> {
    let mut soak = prepared(installer)?;
    soak.args(["test", "--release", "--package", "shunt", "--test", "soak"]);
    soak.env("SHUNT_SOAK_SECONDS", (minutes * 60).to_string());
    if let Some(seed) = seed {
        soak.env("SHUNT_SEED", seed.to_string());
    }
    run(&mut soak)
}

/// Run the benchmarks; `args` go to them.
pub(crate) fn bench(installer: &Installer, args: &[String]) -> Result<()> {
    let subcommand = ["bench", "--package", "shunt", "--bench", "bench", "--"];
    run_programs(installer, &subcommand, args)
}

/// Run the benchmarks and bring their figures into the documents: also those of a run in which a
/// section failed.
pub(crate) fn bench_for_docs(installer: &Installer, args: &[String]) -> Result<()> {
    let file = repository().join("target/benchmarks.json");
    let _ = fs::remove_file(&file);
    let written = ["--write-json".to_owned(), file.display().to_string()];
    let outcome = bench(installer, &[args, &written].concat());
    if outcome.is_err() && !file.exists() {
        return outcome;
    }
    write_docs(&file).and(outcome)
}

/// Brings figures, which are in this file, into the documents.
pub(crate) fn write_docs(file: &Path) -> Result<()> {
    let file = fs::canonicalize(file).with_context(|| format!("cannot read {}", file.display()))?;
    run(cargo().args(["run", "--quiet", "--package=shunt-draw", "figures"]).arg(file))
}

/// Makes the pictures of commands, in a network namespace of its own.
pub(crate) fn pictures(installer: &Installer) -> Result<()> {
    let shunt = agent::build(installer)?;
    let mut draw = prepared(installer)?;
    run(draw.args(["run", "--package=shunt-draw", "pictures"]).arg(shunt))
}

fn run_programs(installer: &Installer, subcommand: &[&str], args: &[String]) -> Result<()> {
    run(prepared(installer)?.args(subcommand).args(args))
}

/// A cargo that has what it needs, and whose programs get the rights that they need.
fn prepared(installer: &Installer) -> Result<Command> {
    installer.ensure(&[packages::BUILD, packages::NAMESPACES, packages::TEST])?;

    let mut cargo = cargo();
    if env::var_os(THREADS).is_none() {
        // Tests wait for the kernel and the agent half of the time.
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env(THREADS, (2 * processors).to_string());
    }
    let isolation = privilege::isolation()?;
    if !geteuid().is_root() {
        // Only the programs that cargo built run as the namespace's root: the build stays outside,
        // where the files that it writes belong to the user and the network is reachable.
        cargo.args(["--config", &runner(&isolation)]);
    }
    Ok(cargo)
}

/// The cargo setting that puts `words` before every program it runs, whatever the target.
fn runner(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    format!("target.'cfg(all())'.runner = [{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_were_not_run_are_counted() {
        let lines = ["24 of parity: no kube-proxy", "1 of configuration: no kube-proxy"];
        assert_eq!(count(&lines.map(str::to_owned)), Some(25));
        assert_eq!(count(&[]), None);
    }

    #[test]
    fn failed_tests_are_named() {
        const OUTPUT: &str = "running 3 tests\ntest a::b ... FAILED\ntest c ... ok\n\nfailures:\n\n\
            ---- a::b stdout ----\n    seen\n\n\nfailures:\n    a::b\n    d (line 3)\n\n\
            test result: FAILED. 1 passed; 2 failed\n\nrunning 1 test\n    e\ntest e ... ok\n\n\
            test result: ok. 1 passed\n";
        let mut shown = Vec::new();
        assert_eq!(pass_on(OUTPUT.as_bytes(), &mut shown).unwrap(), ["a::b", "d (line 3)"]);
        assert_eq!(shown, OUTPUT.as_bytes());
    }

    #[test]
    fn the_runner_is_a_setting_that_cargo_reads() {
        let setting: toml::Table = toml::from_str(&runner(&["sh", "-c", r#"exec "$@""#])).unwrap();
        let words = setting["target"]["cfg(all())"]["runner"].as_array().unwrap();
        assert_eq!(words[2].as_str(), Some(r#"exec "$@""#));
    }
}
