//! The health of the agent: the results of its syncs, and the age of its backlogs.

use std::path::Path;
use std::sync::Arc;

use shunt_core::model::Family;
use tokio::sync::watch;

use crate::config::Config;
use crate::dataplane::Backlog;
use crate::flows::Unswept;
use crate::serve::http::{Health, HealthSource};

/// Returns a source that combines the observed state and the backlogs on each request. A thread that
/// hangs reports nothing, but its backlog ages.
pub(super) fn health_source(
    state: watch::Receiver<Health>,
    config: watch::Receiver<Config>,
    backlog: Backlog,
    unswept: Unswept,
) -> HealthSource {
    Arc::new(move || Health {
        waiting: backlog.oldest().map(|since| since.elapsed()),
        unswept: unswept.oldest().map(|since| since.elapsed()),
        patience: 2 * config.borrow().sync_period,
        ..state.borrow().clone()
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
