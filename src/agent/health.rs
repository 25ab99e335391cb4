//! The health of the agent: the results of its syncs, and the age of its backlogs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use shunt_core::model::Family;
use tokio::sync::watch;

use crate::dataplane::Backlog;
use crate::flows::Unswept;
use crate::serve::http::{Health, HealthSource};

/// The observed part of the health.
#[derive(Debug, Clone)]
pub(super) struct HealthState {
    /// The time of the last successful sync.
    pub(super) last_updated: Option<SystemTime>,
    /// How long a change may wait before the agent counts as unhealthy.
    pub(super) patience: Duration,
    /// False if load balancers should not send new traffic to this node.
    pub(super) node_eligible: bool,
}

/// Returns a source that combines the observed state and the backlogs on each request. A thread that
/// hangs reports nothing, but its backlog ages.
pub(super) fn health_source(
    state: watch::Receiver<HealthState>,
    backlog: Backlog,
    unswept: Unswept,
    families: Vec<Family>,
) -> HealthSource {
    Arc::new(move || {
        let HealthState { last_updated, patience, node_eligible } = state.borrow().clone();
        let waiting = backlog.oldest().map(|since| since.elapsed());
        let unswept = unswept.oldest().map(|since| since.elapsed());
        let families = families.clone();
        Health { last_updated, waiting, unswept, patience, node_eligible, families }
    })
}

/// Returns the IP families of this thread's network namespace. Like kube-proxy, without IPv6 if the
/// kernel lacks it or a sysctl disables it as a whole.
pub(crate) fn families() -> Vec<Family> {
    let switched_off = || {
        std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6")
            .is_ok_and(|value| value.trim() == "1")
    };
    let v6 = Path::new("/proc/thread-self/net/if_inet6").exists() && !switched_off();
    Family::ALL.into_iter().filter(|family| *family == Family::V4 || v6).collect()
}
