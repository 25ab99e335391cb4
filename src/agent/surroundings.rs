//! Looks for what others have on this node, at the start and while the agent runs.
//!
//! The stale rules of kube-proxy send traffic to endpoints that are gone, and a running kube-proxy and
//! shunt undo each other's work. Processes that listen on node ports get no packets there.

use std::time::Duration;

use nfnetlink::nft::{Kernel, Socket};

use super::{Reports, events};
use crate::dataplane::kube_proxy::{KubeProxyTraces, find};
use crate::taken_ports::{TakenPort, TakenPorts};

/// The maximum number of node ports that one look logs.
const MAX_LINES: usize = 10;

/// Checks this thread's network namespace now and after each period; only once if the period is
/// zero. `taken_node_ports` finds other processes on node ports.
pub(super) fn look(period: Duration, reports: &Reports, taken_node_ports: impl Fn() -> TakenPorts) {
    let mut kernel = match Socket::open() {
        Ok(kernel) => kernel,
        Err(error) => return tracing::warn!("cannot check for rules of kube-proxy: {error}"),
    };
    let (mut watch, mut listeners) = (SurroundingsWatch::default(), Listeners::default());
    loop {
        watch.look(&mut kernel, reports);
        if period.is_zero() {
            return;
        }
        let report = taken_node_ports();
        reports.metrics.set("shunt_node_ports_taken", &[], report.ports.len() as f64);
        listeners.log(report);
        std::thread::sleep(period);
    }
}

/// The findings so far.
#[derive(Default)]
struct SurroundingsWatch {
    last: KubeProxyTraces,
    /// Rules of kube-proxy existed earlier and were removed.
    were_removed: bool,
}

impl SurroundingsWatch {
    fn look(&mut self, kernel: &mut dyn Kernel, reports: &Reports) {
        let found = match find(kernel) {
            Ok(found) => found,
            // For example, tables changed during the listing. The next check repeats it.
            Err(error) => return tracing::debug!(%error, "cannot check for rules of kube-proxy"),
        };
        for (kind, count) in found.counts() {
            reports.metrics.set("shunt_kube_proxy_leftovers", &[("kind", kind)], count as f64);
        }
        reports.known.note(|status| status.kube_proxy.clone_from(&found));
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

/// The processes on node ports that the log has.
#[derive(Default)]
struct Listeners {
    trouble: Option<String>,
    /// Those of the last look.
    last: Vec<TakenPort>,
    logged: Vec<TakenPort>,
}

impl Listeners {
    /// Logs what two looks in a row have found: a UDP client has its port for a moment.
    fn log(&mut self, report: TakenPorts) {
        if let Some(trouble) = &report.trouble
            && self.trouble.as_ref() != Some(trouble)
        {
            tracing::warn!(
                "cannot look for other processes on node ports: {trouble}; the kernel needs its \
                 modules tcp_diag and udp_diag"
            );
        }
        let stays: Vec<TakenPort> =
            report.ports.iter().filter(|taken| self.last.contains(taken)).cloned().collect();
        let new: Vec<_> = stays.iter().filter(|taken| !self.logged.contains(taken)).collect();
        for taken in new.iter().take(MAX_LINES) {
            let remedy = taken.remedy();
            tracing::warn!(object = %format_args!("Service {}", taken.service), "{taken}; {remedy}");
        }
        for TakenPort { protocol, port, service, .. } in
            self.logged.iter().filter(|taken| !stays.contains(taken)).take(MAX_LINES)
        {
            tracing::info!(
                object = %format_args!("Service {service}"),
                "the processes on {protocol} node port {port} have changed or ended"
            );
        }
        if let more @ 1.. = new.len().saturating_sub(MAX_LINES) {
            tracing::warn!("other processes listen on {more} more node ports: see `shunt status`");
        }
        *self = Listeners { trouble: report.trouble, last: report.ports, logged: stays };
    }
}

/// Returns the kinds of leftovers. Their counts change all the time while kube-proxy runs.
fn kinds(found: &KubeProxyTraces) -> Vec<&'static str> {
    let counts = found.counts().into_iter();
    counts.filter(|(_, count)| *count > 0).map(|(kind, _)| kind).collect()
}

fn report(found: &KubeProxyTraces, came_back: bool, reports: &Reports) {
    let what_to_do = if came_back || !found.processes.is_empty() {
        "kube-proxy is running: stop it, then run `shunt cleanup --kube-proxy --keep-own`"
    } else {
        "no kube-proxy updates these rules: run `shunt cleanup --kube-proxy --keep-own`"
    };
    let guide = found.guide().map(|guide| format!("; see {guide} for what changes"));
    let what_to_do = what_to_do.to_owned() + &guide.unwrap_or_default();
    tracing::warn!("kube-proxy or its leftovers found on this node: {found}; {what_to_do}");
    reports.events.record(events::kube_proxy_found(found, &what_to_do));
}
