//! How the agent is: what the observer found out, and what waits.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use shunt_core::model::Family;
use tokio::sync::watch;

use crate::dataplane::Backlog;
use crate::http::{Health, HealthSource};

/// What has been found out so far.
#[derive(Debug, Clone)]
pub(super) struct HealthState {
    /// When a sync last succeeded.
    pub(super) last_updated: Option<SystemTime>,
    /// How long a change may wait.
    pub(super) patience: Duration,
    /// False if load balancers should not send new traffic to this node.
    pub(super) node_eligible: bool,
}

/// Puts together what was found out and what waits, whenever somebody asks. A thread that hangs
/// reports nothing, but its backlog gets old.
pub(super) fn health_source(
    state: watch::Receiver<HealthState>,
    backlog: Backlog,
    families: Vec<Family>,
) -> HealthSource {
    Arc::new(move || {
        let HealthState { last_updated, patience, node_eligible } = state.borrow().clone();
        let waiting = backlog.oldest().map(|since| since.elapsed());
        Health { last_updated, waiting, patience, node_eligible, families: families.clone() }
    })
}

/// The families that the node has, in the network namespace of this thread: kube-proxy, too, does
/// without IPv6 where the kernel has none or where it is switched off as a whole.
pub(super) fn families() -> Vec<Family> {
    let switched_off = || {
        std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6")
            .is_ok_and(|value| value.trim() == "1")
    };
    let v6 = Path::new("/proc/thread-self/net/if_inet6").exists() && !switched_off();
    Family::ALL.into_iter().filter(|family| *family == Family::V4 || v6).collect()
}
