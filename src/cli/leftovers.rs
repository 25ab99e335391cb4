//! Checks for kube-proxy on this node, at the start and while the agent runs: its stale rules send
//! traffic to endpoints that are gone, and a running kube-proxy and shunt undo each other's work.

use std::time::Duration;

use nfnetlink::nft::{Kernel, Socket};

use super::events;
use crate::events::Recorder;
use crate::kube_proxy::{Found, find};
use crate::metrics::Metrics;
use crate::status::AgentState;

/// The destinations of a report.
pub(super) struct Reports {
    pub(super) events: Recorder,
    pub(super) metrics: Metrics,
    pub(super) known: AgentState,
}

/// Checks this thread's network namespace now and after each period; only once if the period is
/// zero.
pub(super) fn look(period: Duration, reports: &Reports) {
    let mut kernel = match Socket::open() {
        Ok(kernel) => kernel,
        Err(error) => return tracing::warn!("cannot check for rules of kube-proxy: {error}"),
    };
    let mut watch = Watch::default();
    loop {
        watch.look(&mut kernel, reports);
        if period.is_zero() {
            return;
        }
        std::thread::sleep(period);
    }
}

/// The findings so far.
#[derive(Default)]
struct Watch {
    last: Found,
    /// Rules of kube-proxy existed earlier and were removed.
    were_removed: bool,
}

impl Watch {
    fn look(&mut self, kernel: &mut dyn Kernel, reports: &Reports) {
        let found = match find(kernel) {
            Ok(found) => found,
            // For example, tables changed during the listing. The next check repeats it.
            Err(error) => return tracing::debug!(%error, "cannot check for rules of kube-proxy"),
        };
        reports.metrics.kube_proxy_found(&found.counts());
        reports.known.found_kube_proxy(&found);
        let had_rules = self.last.has_rules();
        let came_back = self.were_removed && found.has_rules() && !had_rules;
        self.were_removed |= had_rules && !found.has_rules();
        if kinds(&found) != kinds(&self.last) {
            match found.is_nothing() {
                true => tracing::info!("kube-proxy and its rules are gone from this node"),
                false => report(&found, came_back, reports),
            }
        }
        self.last = found;
    }
}

/// Returns the kinds of leftovers. Their counts change all the time while kube-proxy runs.
fn kinds(found: &Found) -> Vec<&'static str> {
    let counts = found.counts().into_iter();
    counts.filter(|(_, count)| *count > 0).map(|(kind, _)| kind).collect()
}

fn report(found: &Found, came_back: bool, reports: &Reports) {
    let what_to_do = if came_back || !found.processes.is_empty() {
        "kube-proxy runs beside shunt: stop it, then run `shunt cleanup --kube-proxy --keep-own`"
    } else {
        "no kube-proxy updates these rules: run `shunt cleanup --kube-proxy --keep-own`"
    };
    let guide = found.guide().map(|guide| format!("; {guide} has what changes"));
    let what_to_do = what_to_do.to_owned() + &guide.unwrap_or_default();
    tracing::warn!("kube-proxy or its leftovers found on this node: {found}; {what_to_do}");
    reports.events.record(events::kube_proxy_found(found, &what_to_do));
}
