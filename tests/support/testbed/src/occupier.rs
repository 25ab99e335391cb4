//! Another program that keeps the agent from its tables.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};

use crate::netns::Netns;

/// Somebody else whose table, under the agent's name, nobody may touch (kernel 6.9 and later). It is
/// gone when this is dropped.
pub struct Occupier(Child);

impl Occupier {
    /// Replaces the agent's table `ip shunt` by an empty one of its own. The agent must not own it.
    pub fn enter(ns: &Netns) -> Result<Self> {
        let mut child = ns
            .command("nft")
            .arg("-i")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start nft")?;
        let stdin = child.stdin.as_mut().context("no standard input")?;
        writeln!(stdin, "delete table ip shunt; add table ip shunt {{ flags owner; }}")?;
        writeln!(stdin, "list tables")?;
        stdin.flush()?;
        let stdout = child.stdout.as_mut().context("no standard output")?;
        let listed = BufReader::new(stdout).lines().map_while(Result::ok);
        let found = listed.into_iter().any(|line| line.contains("table ip shunt"));
        ensure!(found, "nft ended before it had the table");
        Ok(Self(child))
    }
}

impl Drop for Occupier {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
