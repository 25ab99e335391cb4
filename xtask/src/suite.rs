//! `cargo xtask test`, `cargo xtask soak` and `cargo xtask bench`: cargo's own runs, with what they
//! need installed and with the rights that talking to a kernel takes.

use std::process::Command;

use anyhow::Result;

use crate::command::{cargo, run};
use crate::packages::{Installer, Purpose};
use crate::privilege::Privilege;

/// Run every test of the workspace, or those of the packages that `args` select; `args` go to
/// `cargo test`.
pub(crate) fn test(installer: &Installer, args: &[String]) -> Result<()> {
    let subcommand: &[_] = if selects_package(args) { &["test"] } else { &["test", "--workspace"] };
    run_programs(installer, subcommand, args)
}

/// Run the soak for so many minutes, in the order of events that follows from `seed`, if it is given.
pub(crate) fn soak(installer: &Installer, minutes: u64, seed: Option<u64>) -> Result<()> {
    let mut soak = prepared(installer)?;
    soak.args(["test", "--release", "--package", "shunt", "--test", "soak"]);
    soak.env("SHUNT_SOAK_SECONDS", (minutes * 60).to_string());
    if let Some(seed) = seed {
        soak.env("SHUNT_SOAK_SEED", seed.to_string());
    }
    run(&mut soak)
}

/// Run the benchmarks; `args` go to them.
pub(crate) fn bench(installer: &Installer, args: &[String]) -> Result<()> {
    let subcommand = ["bench", "--package", "shunt", "--bench", "bench", "--"];
    run_programs(installer, &subcommand, args)
}

/// Whether cargo is told which packages; a `--workspace` of ours would overrule that.
fn selects_package(args: &[String]) -> bool {
    let selectors = ["-p", "--package", "--workspace"];
    args.iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| selectors.iter().any(|selector| arg.starts_with(selector)))
}

fn run_programs(installer: &Installer, subcommand: &[&str], args: &[String]) -> Result<()> {
    run(prepared(installer)?.args(subcommand).args(args))
}

/// A cargo that has what it needs, and whose programs get the rights that they need.
fn prepared(installer: &Installer) -> Result<Command> {
    installer.ensure(&[Purpose::Build, Purpose::Test])?;
    let privilege = Privilege::probe()?;

    let mut cargo = cargo();
    if privilege == Privilege::UserNamespace {
        // Only the programs that cargo built run as the namespace's root: the build stays outside,
        // where the files that it writes belong to the user and the network is reachable.
        cargo.args(["--config", &runner(&privilege.isolation())]);
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
    fn a_selected_package_is_seen_and_a_test_harness_option_is_not() {
        let args = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert!(selects_package(&args(&["-p", "shunt"])));
        assert!(selects_package(&args(&["--package=shunt", "name"])));
        assert!(selects_package(&args(&["--workspace"])));
        assert!(!selects_package(&args(&["name", "--", "-p"])));
        assert!(!selects_package(&[]));
    }

    #[test]
    fn the_runner_is_a_setting_that_cargo_reads() {
        let setting: toml::Table = toml::from_str(&runner(&["sh", "-c", r#"exec "$@""#])).unwrap();
        let words = setting["target"]["cfg(all())"]["runner"].as_array().unwrap();
        assert_eq!(words[2].as_str(), Some(r#"exec "$@""#));
    }
}
