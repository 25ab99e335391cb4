//! `shunt cleanup`: takes away what the agent leaves in the kernel, and what kube-proxy left.

use std::fs;

use anyhow::Context;

use super::args::Cleanup;
use super::{Failure, logging, netns};
use crate::dataplane::{Scope, remove};
use crate::nft::Socket;

/// The tables of legacy iptables that are in use in the network namespace of this thread, a line
/// each; readable only for root.
const LEGACY_TABLES: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];

pub(super) fn cleanup(arguments: &Cleanup) -> Result<(), Failure> {
    logging::start_with(&arguments.logging.0);
    netns::enter(arguments.netns.as_deref())?;
    clean(Scope { own: !arguments.keep_own, kube_proxy: arguments.kube_proxy })
}

/// Removes what is in scope from the network namespace of this thread.
pub(super) fn clean(scope: Scope) -> Result<(), Failure> {
    let removed = Socket::open()
        .and_then(|mut socket| remove(&mut socket, scope))
        .map_err(|error| super::run::explain(&error))
        .context("nothing was removed")?;
    if removed.is_nothing() {
        tracing::info!("there was nothing to remove in this network namespace");
    } else {
        tracing::info!(
            shunt_tables = removed.own_tables,
            kube_proxy_tables = removed.kube_proxy_tables,
            kube_proxy_chains = removed.kube_proxy_chains,
            "removed; nothing else was touched"
        );
    }
    if scope.kube_proxy {
        for chain in &removed.kept {
            tracing::warn!(
                chain,
                "left in place: rules of somebody else go to this chain of kube-proxy; delete \
                 these rules and run this again"
            );
        }
        warn_of_legacy_iptables();
    }
    Ok(())
}

/// Legacy iptables keeps its rules outside of nf_tables, where we neither see nor delete them.
fn warn_of_legacy_iptables() {
    let tables: Vec<String> =
        LEGACY_TABLES.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let tables: Vec<&str> = tables.iter().flat_map(|names| names.split_whitespace()).collect();
    if !tables.is_empty() {
        tracing::warn!(
            tables = tables.join(", "),
            "legacy iptables is in use here, and what kube-proxy may have left there was not \
             removed: look with `iptables-legacy-save`, remove it with `kube-proxy --cleanup` or \
             by restarting the node"
        );
    }
}
