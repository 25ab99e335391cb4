//! `cargo xtask test` and `cargo xtask bench`: cargo's own runs, with what they need installed and
//! with the rights that talking to a kernel takes.

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

/// Run the benchmarks; `args` go to `cargo bench`.
pub(crate) fn bench(installer: &Installer, args: &[String]) -> Result<()> {
    run_programs(installer, &["bench", "--package", "shunt"], args)
}

/// Whether cargo is told which packages; a `--workspace` of ours would overrule that.
fn selects_package(args: &[String]) -> bool {
    let selectors = ["-p", "--package", "--workspace"];
    args.iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| selectors.iter().any(|selector| arg.starts_with(selector)))
}

fn run_programs(installer: &Installer, subcommand: &[&str], args: &[String]) -> Result<()> {
    installer.ensure(&[Purpose::Build, Purpose::Test])?;
    let privilege = Privilege::probe()?;

    let mut cargo = cargo();
    if privilege == Privilege::UserNamespace {
        // Only the programs that cargo built run as the namespace's root: the build stays outside,
        // where the files that it writes belong to the user and the network is reachable.
        cargo.args(["--config", &runner(&privilege.isolation())]);
    }
    run(cargo.args(subcommand).args(args))
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
