//! The first file system of the machines: the tests, the agent, and the programs that they call, with
//! their libraries, all from this machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::command::{cargo, describe, find, repository};
use crate::programs;
use crate::tree::Tree;

/// The tests that are run on other kernels: those that look at what the kernel makes of what the agent
/// says. Others test what no kernel has a part in.
const SUITES: [&str; 6] =
    ["kernel", "differential", "conntrack", "packets", "endpoints", "frontends"];

/// The packages that have them.
const PACKAGES: [&str; 2] = ["--package=shunt", "--package=shunt-fake"];

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
const FIXTURES: [&str; 3] = ["examples", "tests/fixtures", "tests/kernel/examples.nft"];

/// The program of `vm-tests`, in the machine.
pub(super) const OWN_PROGRAM: &str = "/usr/bin/shunt-vm";

/// What cargo has built for the machines.
pub(super) struct Built {
    /// Names of suites, and the programs that run them.
    suites: Vec<(String, PathBuf)>,
    agent: PathBuf,
    own_program: PathBuf,
}

impl Built {
    /// Build the tests and the agent as they are released.
    pub(super) fn new() -> Result<Self> {
        let mut tests = vec!["test", "--no-run"];
        tests.extend(PACKAGES);
        SUITES.iter().for_each(|suite| tests.extend(["--test", suite]));
        let programs = built(&tests)?;
        let program = |name: &str, is_test: bool| {
            let found = programs.iter().find(|it| it.name == name && it.is_test == is_test);
            let file = found.map(|program| program.file.clone());
            file.with_context(|| format!("cargo has built no program {name}"))
        };
        let suites = SUITES.iter().map(|suite| Ok(((*suite).to_owned(), program(suite, true)?)));
        let own = built(&["build", "--package=shunt-vm"])?;
        Ok(Self {
            suites: suites.collect::<Result<_>>()?,
            agent: program("shunt", false)?,
            own_program: own.into_iter().next().context("cargo has built no shunt-vm")?.file,
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
        // Tests know the agent by the path that cargo gave it.
        files.push((self.agent(), self.agent.clone()));
        files.extend(self.suites.iter().map(|(name, file)| (program_of(name), file.clone())));
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

    /// The agent's path, here and in the machine.
    pub(super) fn agent(&self) -> String {
        self.agent.display().to_string()
    }
}

/// Where the program of a suite is in the machine.
pub(super) fn program_of(suite: &str) -> String {
    format!("/tests/{suite}")
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
    is_test: bool,
    file: PathBuf,
}

/// Run cargo with these arguments, as for a release; the programs that it names.
fn built(arguments: &[&str]) -> Result<Vec<Program>> {
    let mut cargo = cargo();
    cargo.args(arguments).args([
        "--release",
        "--locked",
        "--message-format=json-render-diagnostics",
    ]);
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
        is_test: message.pointer("/profile/test")?.as_bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let message = r#"{"reason":"compiler-artifact","target":{"name":"kernel"},
            "profile":{"test":true},"executable":"/t/kernel-1"}"#;
        let read = program(message).unwrap();
        assert_eq!((read.name.as_str(), read.is_test), ("kernel", true));
        assert_eq!(read.file, Path::new("/t/kernel-1"));
        assert!(program(r#"{"reason":"compiler-artifact","executable":null}"#).is_none());
        assert!(program("not JSON").is_none());
    }
}
