//! `shunt cleanup`: removes what shunt has programmed, and the leftovers of kube-proxy.

use anyhow::Context;
use nfnetlink::nft::Socket;

use super::args::Cleanup;
use crate::agent::{Failure, kernel_errors};
use crate::dataplane::kube_proxy::{RemovedIpvs, find, remove_ipvs};
use crate::dataplane::trace_table::remove_orphans;
use crate::dataplane::{Scope, remove};

pub(super) fn cleanup(arguments: &Cleanup) -> Result<(), Failure> {
    arguments.here.enter()?;
    clean(Scope { own: !arguments.keep_own, kube_proxy: arguments.kube_proxy })
}

/// Removes everything in scope from the network namespace of this thread.
pub(super) fn clean(scope: Scope) -> Result<(), Failure> {
    let removed = Socket::open()
        .and_then(|mut socket| remove(&mut socket, scope))
        .map_err(kernel_errors::explain)
        .context("nothing was removed")?;
    let ipvs = if scope.kube_proxy {
        remove_ipvs().context("cannot remove all leftovers of kube-proxy's IPVS mode")?
    } else {
        RemovedIpvs::default()
    };
    let trace_tables = if scope.own {
        let removed = Socket::open().and_then(|mut socket| remove_orphans(&mut socket));
        removed.context("cannot remove the tables of a killed `shunt trace`")?
    } else {
        0
    };
    if removed.is_nothing() && ipvs == RemovedIpvs::default() && trace_tables == 0 {
        tracing::info!("nothing to remove in this network namespace");
    } else {
        tracing::info!(
            shunt_tables = removed.own_tables,
            trace_tables,
            kube_proxy_tables = removed.kube_proxy_tables,
            kube_proxy_chains = removed.kube_proxy_chains,
            ipvs_services = ipvs.services,
            ipvs_interface = ipvs.interface,
            "removed; nothing else was touched"
        );
    }
    if scope.kube_proxy {
        for chain in &removed.kept {
            tracing::warn!(
                chain,
                "left in place: rules of another program jump to this chain of kube-proxy; delete \
                 these rules and run this again"
            );
        }
        warn_of_what_is_left();
    }
    Ok(())
}

/// Logs leftovers of kube-proxy that shunt does not remove: a process, and chains of legacy
/// iptables, which keeps its rules outside of nf_tables.
fn warn_of_what_is_left() {
    let left = match Socket::open().and_then(|mut socket| find(&mut socket)) {
        Ok(left) => left,
        Err(error) => return tracing::warn!(%error, "cannot check for leftovers of kube-proxy"),
    };
    if !left.processes.is_empty() {
        tracing::warn!(
            processes = ?left.processes,
            "kube-proxy runs on this node and rewrites its rules; stop it and run this again"
        );
    }
    if left.legacy_iptables_chains > 0 {
        tracing::warn!(
            chains = left.legacy_iptables_chains,
            "left in place: chains of kube-proxy in legacy iptables; run `kube-proxy --cleanup` or \
             restart the node (`iptables-legacy-save` shows them)"
        );
    }
}
