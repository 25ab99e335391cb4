//! `shunt trace`: where it ends, and that its table goes.

use std::process::{Child, Output, Stdio};

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shunt_testbed::{Netns, eventually};

use crate::world::{SHUNT, World};

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

#[test]
fn count_limits_the_connections() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let arguments = ["--to", "10.96.0.10:80", "--count", "3", "-o", "json"];
    let trace = Trace::start(&world.lab.node, &arguments)?;
    let pods = ["pod-1", "pod-2", "pod-3"];
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&pods);
    let output = trace.output()?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(json["packets"].as_array().map(Vec::len), Some(3), "{json:#}");
    Ok(())
}

#[test]
fn table_goes_when_the_command_is_killed() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    for (to, signal) in [
        ("10.96.0.10:80", Signal::SIGKILL),
        ("[fd00:96::10]:80", Signal::SIGTERM),
        ("10.96.0.10:80", Signal::SIGINT),
    ] {
        let trace = Trace::start(&world.lab.node, &["--to", to])?;
        kill(Pid::from_raw(trace.child.id().try_into()?), signal)?;
        let output = trace.output()?;
        let expected = (signal != Signal::SIGKILL).then_some(1);
        assert_eq!(output.status.code(), expected, "{signal}");
    }
    world.assert_web_works();
    Ok(())
}
