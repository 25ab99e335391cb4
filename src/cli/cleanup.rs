//! `shunt cleanup`: takes away what the agent leaves in the kernel.

use anyhow::Context;

use super::args::Cleanup;
use super::{Failure, logging, netns};
use crate::dataplane::remove_tables;
use crate::nft::Socket;

pub(super) fn cleanup(arguments: &Cleanup) -> Result<(), Failure> {
    logging::start_with(&arguments.logging);
    netns::enter(arguments.netns.as_deref())?;
    let removed = Socket::open()
        .and_then(|mut socket| remove_tables(&mut socket))
        .map_err(|error| super::run::explain(&error))
        .context("nothing was removed")?;
    match removed {
        0 => tracing::info!("there are no tables of shunt in this network namespace"),
        _ => tracing::info!("removed the tables of shunt; nothing else was touched"),
    }
    Ok(())
}
