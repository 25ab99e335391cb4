//! Shells in which commands of an administrator run.

use std::fs;
use std::process::{Command, Output, Stdio};

use anyhow::{Result, ensure};
use shunt_testbed::TempDir;

use crate::kubernetes::Kubernetes;

/// A shell whose kubectl is an administrator of the cluster, in a folder of its own.
pub struct Shell<'a> {
    kubernetes: &'a Kubernetes,
    folder: TempDir,
}

impl<'a> Shell<'a> {
    /// With an empty folder.
    pub fn new(kubernetes: &'a Kubernetes) -> Result<Self> {
        Ok(Self { kubernetes, folder: TempDir::new()? })
    }

    /// A shell that runs this script to its first error.
    pub fn command(&self, script: &str) -> Command {
        let mut command = self.kubernetes.admin_command("bash");
        command.args(["-o", "pipefail", "-ec", script]).current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs a script and returns what it prints on standard output.
    pub fn run(&self, script: &str) -> Result<String> {
        let output = self.command(script).output()?;
        ensure!(output.status.success(), "{script}\n{}", everything(&output));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        Ok(fs::write(self.folder.path().join(name), content)?)
    }
}

/// All that a program printed.
pub fn everything(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it)).concat()
}
