//! `shunt trace`: where it ends, and that its table goes.

use std::process::{Child, Output, Stdio};

use anyhow::{Result, ensure};
use shunt_testbed::{Netns, eventually};

use crate::world::SHUNT;

/// A running trace.
pub(super) struct Trace {
    child: Child,
    netns: Netns,
}

impl Trace {
    /// Starts the command, and waits until it traces.
    pub(super) fn start(netns: &Netns, arguments: &[&str]) -> Result<Trace> {
        let mut command = netns.command(SHUNT);
        command.arg("trace").args(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        eventually("a table of the command", || Ok(has_table(netns)?.then_some(())))?;
        Ok(Trace { child, netns: netns.clone() })
    }

    /// Waits for the end of the command, whose table must be gone then.
    pub(super) fn output(self) -> Result<Output> {
        let output = self.child.wait_with_output()?;
        ensure!(!has_table(&self.netns)?, "the table is still there");
        Ok(output)
    }
}

fn has_table(netns: &Netns) -> Result<bool> {
    Ok(netns.output("nft", &["list", "tables"])?.contains("shunt-trace"))
}
