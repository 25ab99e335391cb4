//! `shunt trace`: follows real packets through all rules.

use anyhow::{Context, anyhow};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;
use shunt_core::model::Store;
use shunt_core::plan::{NodeContext, Options};

use super::{Ended, Report, Target, Tracer};
use crate::agent::{Failure, kernel_errors, logging, netns};
use crate::commands::args::{Format, Trace as Arguments};
use crate::commands::{output, print};
use crate::serve::query::Selection;
use crate::serve::query::{NoAnswer, ask_objects};

/// The exit code if a packet did not reach an endpoint.
const NOT_DELIVERED: u8 = 3;

pub(in crate::commands) fn trace(arguments: &Arguments) -> Result<(), Failure> {
    logging::start_with(&arguments.logging);
    netns::enter(arguments.netns.as_deref())?;
    let (to, protocol) = arguments.to;
    if arguments.from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
        return Err(anyhow!("--from and --to are addresses of different families").into());
    }
    // Before the table exists, so that no signal ends the process without its deletion.
    let stop = signals().context("cannot receive signals")?;
    let target = Target { to, protocol, from: arguments.from };
    let Arguments { count, timeout, .. } = *arguments;
    let tracer = Tracer::start(&target, count, timeout, &node_context(&target))
        .map_err(|error| kernel_errors::explain(&error))
        .context("cannot trace packets")?;
    let text = arguments.output == Format::Text;
    let mut reports: Vec<Report> = Vec::new();
    let mut printed = Ok(());
    if text {
        tracing::info!(
            to = %to, protocol = %protocol, count, ?timeout,
            "waiting for packets"
        );
    }
    let ended = tracer
        .follow(std::os::fd::AsFd::as_fd(&stop), |report| {
            if text && printed.is_ok() {
                printed = output(Format::Text, &report);
            }
            reports.push(report);
        })
        .context("cannot read traces")?;
    printed?;
    if ended.lost_events {
        tracing::warn!("the kernel dropped events, so that steps of packets may be missing");
    }
    if !text {
        print(&crate::commands::json(&json!({ "packets": reports }))?)?;
    }
    judge(&reports, ended, &target)
}

/// Returns the failure that gives the exit code.
fn judge(reports: &[Report], ended: Ended, target: &Target) -> Result<(), Failure> {
    let Target { to, protocol, .. } = target;
    if reports.is_empty() {
        let why = if ended.stopped { "until a signal came" } else { "in time" };
        return Err(anyhow!(
            "no packet that begins a connection to {to}/{protocol} came {why}: send one, raise \
             --timeout, or check that it reaches this node"
        )
        .into());
    }
    let delivered = reports.iter().all(|report| report.outcome == "delivered");
    if delivered { Ok(()) } else { Err(Failure::Result(NOT_DELIVERED)) }
}

fn signals() -> nix::Result<SignalFd> {
    let mut asked = SigSet::empty();
    asked.add(Signal::SIGTERM);
    asked.add(Signal::SIGINT);
    asked.add(Signal::SIGHUP);
    asked.thread_block()?;
    SignalFd::with_flags(&asked, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Returns the inputs of the agent's plan. Without an agent, rules that depend on its configuration
/// are shown by their numbers.
fn node_context(target: &Target) -> NodeContext {
    let selection = Selection::Address { address: target.to.ip(), port: target.to.port() };
    let unknown = || NodeContext::of(&Store::new(), &Options::default(), "");
    match ask_objects(selection) {
        Ok(objects) => {
            let (_, desired) = objects.planned();
            desired.node_context().map_or_else(unknown, |found| NodeContext::clone(found))
        }
        Err(NoAnswer::NoAgent) => unknown(),
        Err(error) => {
            tracing::warn!(%error, "rules that depend on the configuration are shown by number");
            unknown()
        }
    }
}
