//! One agent at a time in a network namespace.

use std::io;
use std::time::Duration;

use anyhow::anyhow;
use nfnetlink::nft;
use nix::errno::Errno;

use super::kernel_errors::{explain, not_allowed};
use crate::serve::presence::{Presence, connect_to_agent, name_of};

/// The pause between two attempts to take the lock.
const RETRY: Duration = Duration::from_millis(50);
/// How long the query for the process that holds the lock may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

/// Takes the lock of this network namespace.
///
/// # Errors
/// If another agent holds it.
pub(super) fn try_hold() -> anyhow::Result<Presence> {
    let taken = Presence::take().map_err(why)?;
    taken.ok_or_else(|| anyhow!("{}: leave the work to it, or stop it first", other()))
}

/// Takes the lock of this network namespace, or waits until it is free.
pub(super) fn hold() -> anyhow::Result<Presence> {
    let mut is_waiting = false;
    loop {
        if let Some(presence) = Presence::take().map_err(why)? {
            return Ok(presence);
        }
        if !std::mem::replace(&mut is_waiting, true) {
            tracing::warn!("{}: waiting until it ends; its rules stay meanwhile", other());
        }
        std::thread::sleep(RETRY);
    }
}

/// Returns a description of the agent that holds the lock.
fn other() -> String {
    match connect_to_agent(CONNECT_TIMEOUT) {
        Ok(Some((_, agent))) => {
            let process = name_of(agent);
            format!("another shunt ({process}) programs this network namespace")
        }
        _ => "another shunt programs this network namespace".to_owned(),
    }
}

fn why(error: io::Error) -> anyhow::Error {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM | Errno::EACCES) => not_allowed(),
        Some(Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT) => explain(nft::Error::Open(error)),
        _ => anyhow::Error::from(error)
            .context("cannot check whether another shunt runs in this network namespace"),
    }
}
