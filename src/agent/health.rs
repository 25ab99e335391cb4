//! The health of the agent: the results of its syncs, and the age of its backlogs.

use std::path::Path;
use std::sync::Arc;

use shunt_core::model::Family;
use tokio::sync::watch;

use crate::config::Loaded;
use crate::dataplane::Backlog;
use crate::flows::Unswept;
use crate::serve::http::{Health, HealthSource};
use crate::serve::status::AgentState;

/// Returns a source that combines the noted state and the backlogs on each request. A thread that
/// hangs notes nothing, but its backlog ages. `unknown_is_eligible` is whether an unknown Node counts as
/// eligible: manifests may define none, in a cluster each node has one.
pub(super) fn health_source(
    known: AgentState,
    loaded: watch::Receiver<Loaded>,
    (backlog, unswept): (Backlog, Unswept),
    families: Vec<Family>,
    unknown_is_eligible: bool,
) -> HealthSource {
    Arc::new(move || {
        let (last_updated, node_is_eligible) = known.health();
        Health {
            last_updated,
            node_eligible: node_is_eligible.unwrap_or(unknown_is_eligible),
            waiting: backlog.oldest().map(|since| since.elapsed()),
            unswept: unswept.oldest().map(|since| since.elapsed()),
            patience: 2 * loaded.borrow().config.sync_period,
            families: families.clone(),
        }
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
