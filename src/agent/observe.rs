//! Handles the events of the dataplane: logs, health, metrics, health checks of load balancers,
//! sweeps of connection tracking.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use shunt_core::model::{ChangeBatch, Family, ObjectName};
use shunt_core::plan::{Conflict, Flows, LoopbackChanges, NodeContext, OVERSIZED};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::{Reports, events};
use crate::config::Loaded;
use crate::dataplane::{Event, Quarantined, Snapshot, SpecConflict, SyncReport};
use crate::flows::{Sweep, Sweeps, sysctl};
use crate::serve::http::{ServiceHealth, ServiceHealths};
use crate::serve::status::{NodePortStatus, Repair, WithoutNode, now};
use crate::source::spanned_yaml::{Diagnostic, Severity};

/// The handler of the dataplane's events.
pub(super) struct Observer {
    pub(super) reports: Reports,
    pub(super) service_healths: watch::Sender<ServiceHealths>,
    /// To the proxy of node ports on loopback addresses.
    pub(super) loopback: UnboundedSender<LoopbackChanges>,
    /// `None` where the kernel has no connection tracking to talk to.
    pub(super) sweeps: Option<Sweeps>,
    pub(super) loaded: watch::Receiver<Loaded>,
    /// The sysctls are set after the first commit, which may load the module of connection tracking.
    pub(super) has_set_sysctls: bool,
    /// The directory of the sysctls: `/proc/sys/net`, or its mount point in a container.
    pub(super) net_sysctls: PathBuf,
    /// The name of the agent's Node, whether the API has none of that name, and what the rules go by,
    /// in the last log line about it.
    pub(super) without_node: Option<(String, bool, WithoutNode)>,
}

impl Observer {
    pub(super) fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Synced {
                wrote,
                flows,
                loopback,
                batches,
                has_lost_changes,
                changes,
                stats,
                snapshot,
            } => {
                log_synced(wrote, stats.took, &snapshot);
                let before = self.reports.known.snapshot();
                let has_same_node = has_same_node(&before, &snapshot);
                if !has_same_node && node_ports(&before) != node_ports(&snapshot) {
                    log_node_ports(&snapshot);
                }
                if !std::mem::replace(&mut self.has_set_sysctls, true) {
                    sysctl::apply(&self.loaded.borrow().config.conntrack, &self.net_sysctls);
                }
                // Before the snapshot: a reader of both never has newer objects than changes.
                self.reports.history.synced(&batches, has_lost_changes, &snapshot);
                // First, so that the status of an agent that is ready includes this sync.
                if self.reports.known.synced(wrote, stats.took, snapshot.clone()) {
                    self.reports.history.notice(None, "commits changes again".to_owned());
                }
                self.note_node(&snapshot);
                if !has_same_node || !Arc::ptr_eq(&before.health_checks, &snapshot.health_checks) {
                    self.service_healths.send_replace(service_healths(&snapshot));
                }
                if !loopback.is_empty() {
                    // The proxy serves until the process ends.
                    let _ = self.loopback.send(loopback);
                }
                self.sweep(flows, &snapshot);
                self.reports.metrics.committed(&stats);
                self.count_triggers(&batches, wrote.is_some());
                self.reports.metrics.changes_synced(changes);
                // Last, so that a scrape with the new gauges also has the counters.
                self.reports.metrics.sync_succeeded(&stats, &snapshot);
            }
            Event::Held { node_is_read } => {
                self.note_without_node(Some((node_is_read, WithoutNode::Held)));
            }
            Event::Failed { error, retry_in, stats, node_is_eligible } => {
                tracing::error!(
                    ?retry_in,
                    "nothing was programmed, the previous rules stay: {error}"
                );
                if self.reports.known.failed(error.to_string(), node_is_eligible) {
                    let text = format!("nothing was programmed: {error}");
                    self.reports.history.notice(None, text);
                }
                self.reports.metrics.committed(&stats);
                self.reports.metrics.sync_failed(&stats);
            }
            Event::CleanedUp { stats } => {
                self.reports.metrics.committed(&stats);
                if stats.refused > 0 {
                    let name = "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total";
                    self.reports.metrics.failed(name);
                }
            }
            Event::Repaired { repaired, writers } => {
                self.reports.metrics.add("shunt_drift_repairs_total", &[], 1.0);
                let writers = if writers.is_empty() {
                    "unknown; the agent now watches for them for some seconds".to_owned()
                } else {
                    let named = writers.iter().map(|w| format!("{} (pid {})", w.process, w.pid));
                    named.collect::<Vec<_>>().join(", ")
                };
                tracing::warn!(
                    repaired, %writers,
                    "another process modified shunt's tables, and the agent repaired them"
                );
                let repair = Repair { at: now(), writers: writers.clone() };
                self.reports.known.note(|status| {
                    status.rules.drift_repairs += 1;
                    status.rules.last_drift_repair = Some(repair);
                });
                self.reports.events.record(events::repaired(repaired, &writers));
            }
            Event::Quarantined(quarantined, others) => {
                report_refused(quarantined, others, events::WHAT_TO_DO);
                self.reports.events.record(events::refused(quarantined, others));
            }
            Event::Released(released, others) => {
                let text =
                    format!("the kernel no longer refuses this frontend{}", events::more(others));
                tracing::info!(frontend = %released.what, "{text}");
                let text = format!("{}: {text}", released.what);
                self.reports.history.notice(released.service.clone(), text);
            }
            Event::Conflict(conflict) => {
                report_conflict(conflict);
                self.reports.events.record(events::conflict(&conflict.conflict));
            }
            Event::Oversized(service) => {
                report_oversized(service);
                self.reports.events.record(events::oversized(service));
            }
        }
    }

    /// Logs once that the agent's Node does not exist or cannot be read, and once that it does. An
    /// Event cannot regard a missing Node.
    fn note_node(&mut self, snapshot: &Snapshot) {
        let how = WithoutNode::of(snapshot);
        self.note_without_node(how.map(|how| (snapshot.store.is_node_read(), how)));
    }

    fn note_without_node(&mut self, how: Option<(bool, WithoutNode)>) {
        let node = self.reports.known.node();
        let without = how.map(|(is_missing, how)| (node.clone(), is_missing, how));
        if without == self.without_node {
            return;
        }
        self.reports.known.note(|status| {
            status.missing_node = how.is_some_and(|(is_missing, _)| is_missing);
            status.without_node = how.map(|(_, how)| how);
        });
        match how {
            Some((is_missing, how)) => {
                let what = how.describe(&node, is_missing);
                tracing::error!(node, field = "hostnameOverride", "{what}");
            }
            None => tracing::info!(node, "the Node has appeared in the API"),
        }
        self.without_node = without;
    }

    /// Records the latency from the triggers of a sync to its commit.
    fn count_triggers(&self, batches: &[ChangeBatch], wrote: bool) {
        let (now, today) = (Instant::now(), SystemTime::now());
        for batch in batches {
            if wrote {
                let after = now.saturating_duration_since(batch.received).as_secs_f64();
                self.reports.metrics.observe("shunt_event_to_kernel_seconds", &[], after);
            }
            for (family, trigger) in &batch.triggers {
                // The clock of the node that wrote the trigger may be ahead of this one.
                let after = today.duration_since(*trigger).unwrap_or_default();
                self.reports.metrics.network_programmed(*family, after);
            }
        }
    }

    fn sweep(&self, flows: Flows, snapshot: &Snapshot) {
        let (Some(sweeps), false) = (&self.sweeps, flows.is_empty()) else { return };
        if let Some(node_context) = &snapshot.node_context {
            sweeps.committed(sweep(flows, node_context));
        }
    }
}

/// Logs the addresses of node ports.
pub(super) fn log_node_ports(snapshot: &Snapshot) {
    let (Some(node_context), Some(node_ports)) = (&snapshot.node_context, node_ports(snapshot))
    else {
        return;
    };
    let primary = node_context.options.node_port_addresses.primary;
    if primary && node_ports.v4.is_none() && node_ports.v6.is_none() {
        tracing::warn!(
            node = node_context.node_name,
            "node ports answer on {node_ports}: nodePortAddresses is primary, and no Node object \
             has primary addresses"
        );
    } else {
        tracing::info!("node ports answer on {node_ports}");
    }
}

/// Returns the sweep for changed flows.
pub(super) fn sweep(flows: Flows, node_context: &NodeContext) -> Sweep {
    Sweep::new(flows, node_context.own_node_port_addresses())
}

/// Returns true if all that the plan knows of the node is surely the same.
fn has_same_node(before: &Snapshot, now: &Snapshot) -> bool {
    match (&before.node_context, &now.node_context) {
        (Some(before), Some(now)) => Arc::ptr_eq(before, now),
        (before, now) => before.is_none() && now.is_none(),
    }
}

fn node_ports(snapshot: &Snapshot) -> Option<NodePortStatus> {
    snapshot.node_context.as_deref().map(NodePortStatus::of)
}

/// Returns the health checks of load balancers by their sockets: the addresses of node ports.
fn service_healths(snapshot: &Snapshot) -> ServiceHealths {
    let mut healths = ServiceHealths::new();
    let Some(node_context) = &snapshot.node_context else { return healths };
    for check in snapshot.health_checks.iter() {
        let all: IpAddr = match check.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let addresses = node_context.node_port_addresses(check.family);
        for address in addresses.unwrap_or_else(|| BTreeSet::from([all])) {
            // Of two Services with one port, the first by name keeps it. The API allows only one.
            healths.entry(SocketAddr::new(address, check.port)).or_insert_with(|| ServiceHealth {
                service: check.service.clone(),
                local_endpoints: check.local_endpoints,
            });
        }
    }
    healths
}

/// Logs a refused frontend and the remedy.
pub(super) fn report_refused(quarantined: &Quarantined, others: usize, next: &str) {
    tracing::error!(
        frontend = %quarantined.what,
        "the kernel refuses this frontend{}; its previous state stays in effect, everything else \
         is programmed; {next}: {}",
        events::more(others),
        quarantined.reason
    );
}

/// Logs a Service whose hash tables or weights would need too many elements.
pub(crate) fn report_oversized(service: &ObjectName) {
    tracing::warn!(%service, "{OVERSIZED}");
}

/// Logs the conflict of two Services.
pub(crate) fn report_conflict(conflict: &SpecConflict) {
    let SpecConflict { conflict: Conflict { frontend, winner, loser, reason }, field } = conflict;
    let reason = format!(
        "{frontend} belongs to Service {winner} until that Service releases it: {reason}; change \
         one of the two"
    );
    Diagnostic::new(Severity::Warning, *field, reason)
        .of_object(format_args!("Service {loser}"))
        .with_value(frontend)
        .log();
}

pub(super) fn log_synced(wrote: Option<SyncReport>, took: Duration, snapshot: &Snapshot) {
    let frontends: usize = snapshot.frontends.iter().sum();
    match wrote {
        Some(report) => tracing::debug!(
            added = report.added,
            deleted = report.deleted,
            messages = report.messages,
            bytes = report.bytes,
            frontends,
            ?took,
            "committed"
        ),
        None => tracing::trace!(
            frontends,
            refused_service_ports = snapshot.quarantined_service_ports,
            ?took,
            "nothing to write: the kernel holds all planned rules, except for refused frontends"
        ),
    }
}
