//! `cargo xtask test` and `cargo xtask bench`: cargo's own runs, with what they need installed and
//! with the rights that talking to a kernel takes.

use anyhow::Result;

use crate::command::{cargo, run};
use crate::packages::{Installer, Purpose};
use crate::privilege::Privilege;

/// Run every test of the workspace; `args` go to `cargo test`.
pub(crate) fn test(installer: &Installer, args: &[String]) -> Result<()> {
    run_programs(installer, &["test", "--workspace"], args)
}

/// Run the benchmarks; `args` go to `cargo bench`.
pub(crate) fn bench(installer: &Installer, args: &[String]) -> Result<()> {
    run_programs(installer, &["bench", "--package", "shunt"], args)
}

fn run_programs(installer: &Installer, subcommand: &[&str], args: &[String]) -> Result<()> {
    installer.ensure(&[Purpose::Build, Purpose::Test])?;
    let privilege = Privilege::probe()?;

    let mut cargo = cargo();
    if privilege == Privilege::UserNamespace {
        // Only the programs that cargo built run as the namespace's root: the build stays outside,
        // where the files that it writes belong to the user and the network is reachable.
        cargo.args(["--config", &runner(privilege.isolation())]);
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
    fn the_runner_is_a_setting_that_cargo_reads() {
        let setting: toml::Table = toml::from_str(&runner(&["unshare", "--net", "--"])).unwrap();
        let words = &setting["target"]["cfg(all())"]["runner"];
        assert_eq!(words.as_array().unwrap().len(), 3);
    }
}
