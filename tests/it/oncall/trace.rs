//! `shunt trace`: what becomes of real packets, and that its table goes.

use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nfnetlink::Family;
use nfnetlink::nft::{Kernel as _, Socket};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shunt_testbed::{Netns, patience};

use crate::world::{SHUNT, World, run_shunt};

/// The name of the tables of the command.
const TABLE: &str = "shunt-trace";

/// Returns true if a table of the command is in a namespace.
fn has_table(netns: &Netns) -> Result<bool> {
    netns.run(|| {
        let mut socket = Socket::open()?;
        for family in [Family::Ip, Family::Ip6] {
            if socket.table(family, TABLE)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Waits until a table of the command is there, or is gone.
fn wait_for_table(netns: &Netns, present: bool) -> Result<()> {
    let deadline = Instant::now() + patience(Duration::from_secs(10));
    while has_table(netns)? != present {
        ensure!(
            Instant::now() < deadline,
            "the table is still {}",
            if present { "missing" } else { "there" }
        );
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A running trace.
pub(super) struct Trace {
    child: Option<Child>,
    netns: Netns,
}

impl Trace {
    /// Starts the command, and waits until it traces.
    pub(super) fn start(netns: &Netns, arguments: &[&str]) -> Result<Trace> {
        let child = Command::new(SHUNT)
            .arg("trace")
            .args(arguments)
            .arg("--netns")
            .arg(netns.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let trace = Trace { child: Some(child), netns: netns.clone() };
        wait_for_table(netns, true)?;
        Ok(trace)
    }

    fn pid(&self) -> Result<Pid> {
        let child = self.child.as_ref().context("the command has ended")?;
        Ok(Pid::from_raw(child.id().try_into()?))
    }

    /// Waits for the end of the command, whose table must be gone then.
    pub(super) fn output(mut self) -> Result<Output> {
        let output = self.child.take().context("the command has ended")?.wait_with_output()?;
        ensure!(!has_table(&self.netns)?, "the table is still there");
        Ok(output)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn nft_lists_the_table() -> Result<()> {
    let world = World::empty()?;
    for to in ["10.96.0.10:80", "[fd00::a]:80/sctp"] {
        let _trace = Trace::start(&world.lab.node, &["--to", to])?;
        let rules = world.rules()?;
        assert!(rules.contains("meta nftrace set 1"), "{rules}");
        assert!(!rules.contains("invalid"), "{rules}");
    }
    Ok(())
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
        kill(trace.pid()?, signal)?;
        let output = trace.output()?;
        let expected = (signal != Signal::SIGKILL).then_some(1);
        assert_eq!(output.status.code(), expected, "{signal}");
    }
    world.assert_web_works();
    Ok(())
}

#[test]
fn second_trace_is_refused() -> Result<()> {
    let world = World::empty()?;
    let _trace = Trace::start(&world.lab.node, &["--to", "10.96.0.10:80"])?;
    let output = run_shunt(&world.lab.node, &["trace", "--to", "10.96.0.10:81"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("ip shunt-trace belongs to another process"), "{stderr}");
    assert!(has_table(&world.lab.node)?);
    Ok(())
}

/// A table as kernels before 5.12 have it after the command was killed.
const ORPHAN: &str = "table ip shunt-trace {
    comment \"shunt trace, netlink port 4000000000\"
    chain start { type filter hook prerouting priority -301; }
}";

#[test]
fn orphaned_table_is_removed() -> Result<()> {
    let world = World::with_web()?;
    world.lab.node.nft(ORPHAN)?;
    let agent = world.start()?;
    wait_for_table(&world.lab.node, false)?;
    drop(agent);

    world.lab.node.nft(ORPHAN)?;
    let output = run_shunt(&world.lab.node, &["cleanup"])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!has_table(&world.lab.node)?);

    // The command itself also takes its place.
    world.lab.node.nft(ORPHAN)?;
    let arguments = ["trace", "--to", "10.96.0.10:80", "--timeout", "10ms"];
    run_shunt(&world.lab.node, &arguments)?;
    assert!(!has_table(&world.lab.node)?);
    Ok(())
}
