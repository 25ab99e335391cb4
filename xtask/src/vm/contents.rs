//! The first file system of the machines: the tests, the agent, and the programs that they call, with
//! their libraries, all from this machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::agent;
use crate::command::{cargo, describe, find, repository};
use crate::programs;
use crate::tree::Tree;

/// The program of the tests that are run on other kernels, as cargo calls it. Its modules are the suites.
const TESTS: &str = "it";

/// Programs that tests call, and a few more for who asks for a shell.
const PROGRAMS: [&str; 18] = [
    "sh",
    "rm",
    "sleep",
    "ip",
    "nft",
    "conntrack",
    "strace",
    "setpriv",
    "setsid",
    "cat",
    "ls",
    "ps",
    "dmesg",
    "grep",
    "head",
    "mount",
    "ping",
    "env",
];

/// Those without which a shell is still a shell.
const OPTIONAL: [&str; 2] = ["ping", "ps"];

/// Files of this machine by which programs know names of protocols.
const SETTINGS: [&str; 2] = ["/etc/protocols", "/etc/services"];

/// What tests read from the repository.
const FIXTURES: [&str; 3] = ["examples", "tests/fixtures", "tests/it/kernel/examples.nft"];

/// The program of `vm-tests`, in the machine.
pub(super) const OWN_PROGRAM: &str = "/usr/bin/shunt-vm";

/// The program of the tests, in the machine.
pub(super) const TEST_PROGRAM: &str = "/tests/it";

/// What cargo has built for the machines.
pub(super) struct Built {
    tests: PathBuf,
    agent: PathBuf,
    /// The path by which the tests know the agent: that of their own build of it.
    agent_path: PathBuf,
    own_program: PathBuf,
}

impl Built {
    /// Build the agent as it is released, and the tests as `cargo xtask test` does: they wait for the
    /// kernel and the agent most of the time, and a build of them for release takes minutes.
    pub(super) fn new() -> Result<Self> {
        // Of the whole workspace, as there: other features would make another build.
        let tests = built(&["test", "--no-run", "--workspace", "--test", TESTS])?;
        let own = built(&["build", "--package=shunt-vm"])?;
        let program = |programs: &[Program], name: &str| {
            let found = programs.iter().find(|it| it.name == name);
            let file = found.map(|program| program.file.clone());
            file.with_context(|| format!("cargo has built no program {name}"))
        };
        Ok(Self {
            tests: program(&tests, TESTS)?,
            agent: agent::build()?,
            agent_path: program(&tests, "shunt")?,
            own_program: program(&own, "shunt-vm")?,
        })
    }

    /// Everything but the kernel's modules and the plan.
    pub(super) fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::default();
        programs::links_at_the_root(&mut tree)?;
        for folder in ["dev", "etc", "proc", "run", "sys", "tmp", "var/tmp"] {
            tree.folder(folder)?;
        }
        for file in SETTINGS {
            if let Ok(content) = fs::read(file) {
                tree.file(file, content)?;
            }
        }
        let mut files = vec![(OWN_PROGRAM.to_owned(), self.own_program.clone())];
        files.push((self.agent(), self.agent.clone()));
        files.push((TEST_PROGRAM.to_owned(), self.tests.clone()));
        for program in PROGRAMS {
            match find(program) {
                Some(file) => files.push((format!("/usr/bin/{program}"), file)),
                None if OPTIONAL.contains(&program) => {}
                None => bail!("there is no `{program}` here, which tests in the machine call"),
            }
        }
        let mut libraries = std::collections::BTreeSet::new();
        for (path, file) in files {
            libraries.extend(programs::libraries(&file)?);
            tree.program(&path, programs::stripped(&file)?)?;
        }
        libraries.iter().try_for_each(|library| programs::library(library, &mut tree))?;
        tree.link("init", OWN_PROGRAM)?;
        tree.link("usr/sbin/modprobe", OWN_PROGRAM)?;
        FIXTURES.iter().try_for_each(|path| copy(&repository().join(path), &mut tree))?;
        Ok(tree)
    }

    /// The agent's path in the machine.
    pub(super) fn agent(&self) -> String {
        self.agent_path.display().to_string()
    }
}

/// Put a file or folder where it is here.
fn copy(path: &Path, tree: &mut Tree) -> Result<()> {
    let unreadable = || format!("cannot read {}", path.display());
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(unreadable)? {
            copy(&entry.with_context(unreadable)?.path(), tree)?;
        }
        return Ok(());
    }
    tree.file(&path.display().to_string(), fs::read(path).with_context(unreadable)?)
}

/// A program that cargo has built.
struct Program {
    name: String,
    file: PathBuf,
}

/// Run cargo with these arguments; the programs that it names.
fn built(arguments: &[&str]) -> Result<Vec<Program>> {
    let mut cargo = cargo();
    cargo.args(arguments).args(["--locked", "--message-format=json-render-diagnostics"]);
    let output = cargo
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run `{}`", describe(&cargo)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})", describe(&cargo), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect())
}

/// The program that a message of cargo's is about, if it is about one.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    Some(Program {
        file: message.get("executable")?.as_str()?.into(),
        name: message.pointer("/target/name")?.as_str()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let message =
            r#"{"reason":"compiler-artifact","target":{"name":"it"},"executable":"/t/it-1"}"#;
        let read = program(message).unwrap();
        assert_eq!(read.name, "it");
        assert_eq!(read.file, Path::new("/t/it-1"));
        assert!(program(r#"{"reason":"compiler-artifact","executable":null}"#).is_none());
        assert!(program("not JSON").is_none());
    }
}
