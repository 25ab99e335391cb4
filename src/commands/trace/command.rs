//! `shunt trace`: follows real packets through all rules.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use anyhow::{Context, anyhow};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;

use super::follow::follow;
use super::{Target, TraceReport};
use crate::agent::{Failure, kernel_errors};
use crate::commands::args::{Format, Trace as Arguments};
use crate::commands::{output, print, written};

/// The exit code if a packet did not reach an endpoint.
const NOT_DELIVERED: u8 = 3;

pub(in crate::commands) fn trace(arguments: &Arguments) -> Result<(), Failure> {
    arguments.here.enter()?;
    let (to, protocol) = arguments.to;
    if arguments.from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
        return Err(anyhow!("--from and --to are addresses of different families").into());
    }
    // Before the table exists, so that no signal ends the process without its deletion.
    let stop = signals().context("cannot receive signals")?;
    let from = arguments.from.map(|from| SocketAddr::new(from, 0));
    let target = Target { to, protocol, from, count: arguments.count };
    let text = arguments.output.is_text();
    let mut reports: Vec<TraceReport> = Vec::new();
    let mut printed = Ok(());
    let each = |report| {
        if text && printed.is_ok() {
            printed = output(Format::Text, &report);
        }
        reports.push(report);
    };
    let is_stopped = follow(target, arguments.timeout, stop.as_fd(), each)
        .map_err(kernel_errors::explain)
        .context("cannot trace packets")?;
    printed?;
    if !text {
        print(&written(arguments.output, &json!({ "packets": reports }))?)?;
    }
    if reports.is_empty() {
        let why = if is_stopped { "before the signal" } else { "in time" };
        return Err(anyhow!(
            "no packet that opens a connection to {to}/{protocol} came {why}: send one, raise \
             --timeout, or check that it reaches this node"
        )
        .into());
    }
    let delivered = reports.iter().all(|report| report.outcome == "delivered");
    if delivered { Ok(()) } else { Err(Failure::Result(NOT_DELIVERED)) }
}

fn signals() -> nix::Result<SignalFd> {
    let asked: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    asked.thread_block()?;
    SignalFd::with_flags(&asked, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}
