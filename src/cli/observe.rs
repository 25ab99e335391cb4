//! What follows from what the dataplane reports: logs, health, metrics, checks for load balancers,
//! sweeps of connection tracking.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use shunt_core::model::{Family, Store};
use shunt_core::plan::{Conflict, Flows, FrontendKey, NodePortAddresses, Set, Surroundings};
use tokio::sync::watch;

use super::ending::Vital;
use super::events;
use super::health::HealthState;
use super::reload::PendingSysctls;
use crate::conntrack::{Sweep, sysctl};
use crate::dataplane::{Cause, Dataplane, Event, Quarantined, SyncReport, Tally};
use crate::document::{FieldPath, Problem, Severity};
use crate::events::Recorder;
use crate::metrics::{Changes, Metrics, State, Sync};
use crate::serve::{ServiceHealth, ServiceHealths};
use crate::source::manifests::{Location, Locations};
use crate::status::{Known, NodePorts, missing_node};

/// Hands on what the dataplane reports.
pub(super) struct Observer {
    pub(super) health: watch::Sender<HealthState>,
    /// Whether a node counts as eligible as long as nothing is known of it: manifests may do without
    /// one, in a cluster each has one.
    pub(super) unknown_node_is_eligible: bool,
    pub(super) metrics: Metrics,
    pub(super) events: Recorder,
    pub(super) known: Known,
    pub(super) service_healths: watch::Sender<ServiceHealths>,
    /// `None` where the kernel has no connection tracking to talk to.
    pub(super) sweeps: Option<Sender<Sweep>>,
    /// On which addresses node ports answer, as of the last log line about it.
    pub(super) node_ports: Option<NodePorts>,
    /// To be set after the first commit: connection tracking may be a module that comes with it.
    pub(super) sysctls: PendingSysctls,
    /// Where they are: `/proc/sys/net`, or where a container has it mounted.
    pub(super) net_sysctls: PathBuf,
    /// The name of our Node, if the API has none of that name.
    pub(super) missing_node: Option<String>,
    /// Where manifests define Services.
    pub(super) locations: Locations,
    /// The thread of the dataplane has this, and no other.
    pub(super) _vital: Vital,
}

impl Observer {
    pub(super) fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Synced { wrote, took, flows, causes, changes, tally, dataplane } => {
                log_synced(wrote, took, dataplane);
                self.note_node_ports(dataplane);
                self.set_sysctls();
                // Before others learn of it: an agent that is ready tells so.
                self.known.synced(wrote, took, dataplane);
                self.note_node(dataplane);
                self.note_health(dataplane, true);
                self.service_healths.send_if_modified(|told| {
                    let now = service_healths(dataplane);
                    let changed = *told != now;
                    *told = now;
                    changed
                });
                self.sweep(flows, dataplane);
                self.count(&tally);
                self.count_causes(&causes, wrote.is_some());
                let changes =
                    Changes { services: changes.services, endpoint_slices: changes.slices };
                self.metrics.changes_synced(changes);
                // Last: whoever sees gauges move finds the sync counted with the next scrape.
                let sync = Sync { took, full: tally.full };
                self.metrics.sync_succeeded(sync, &state(dataplane));
            }
            Event::Failed { error, retry_in, took, tally, dataplane } => {
                tracing::error!(?retry_in, "nothing was programmed, what was there stays: {error}");
                self.note_health(dataplane, false);
                self.known.failed(error);
                self.count(&tally);
                self.metrics.sync_failed(Sync { took, full: tally.full });
            }
            Event::CleanedUp { tally } => {
                self.count(&tally);
                if tally.refused > 0 {
                    self.metrics.cleanup_failed();
                }
            }
            Event::Repaired { repaired, writers } => {
                self.metrics.drift_repaired();
                let writers = if writers.is_empty() {
                    "not known yet, the kernel is asked to tell for some seconds".to_owned()
                } else {
                    let named = writers.iter().map(|w| format!("{} (pid {})", w.process, w.pid));
                    named.collect::<Vec<_>>().join(", ")
                };
                tracing::warn!(
                    repaired, %writers,
                    "somebody else changed shunt's tables; they are as planned again"
                );
                self.known.repaired(&writers);
                self.events.record(events::repaired(repaired, &writers));
            }
            Event::Quarantined { quarantined, dataplane } => {
                report_refused(quarantined, events::WHAT_TO_DO);
                self.events.record(events::refused(quarantined, dataplane));
            }
            Event::Released { released } => {
                tracing::info!(frontend = %released.what, "no longer refused by the kernel");
            }
            Event::Conflict { conflict, dataplane } => {
                report_conflict(conflict, dataplane.store(), &self.locations);
                self.events.record(events::conflict(conflict));
            }
        }
    }

    fn note_node_ports(&mut self, dataplane: &Dataplane) {
        let now = dataplane.desired().surroundings().map(NodePorts::of);
        if now != self.node_ports {
            log_node_ports(dataplane);
            self.node_ports = now;
        }
    }

    fn set_sysctls(&self) {
        let pending = self.sysctls.lock().unwrap_or_else(PoisonError::into_inner).take();
        pending.iter().for_each(|settings| sysctl::apply(settings, &self.net_sysctls));
    }

    fn note_health(&self, dataplane: &Dataplane, synced: bool) {
        let node = dataplane.store().node();
        self.health.send_modify(|health| {
            health.node_eligible = node.map_or(self.unknown_node_is_eligible, |node| node.eligible);
            if synced {
                health.last_updated = Some(SystemTime::now());
            }
        });
    }

    /// Says once that our Node does not exist, and once that it does. There may be no Event about a
    /// Node that does not exist.
    fn note_node(&mut self, dataplane: &Dataplane) {
        let is_missing = !self.unknown_node_is_eligible && dataplane.store().node().is_none();
        let missing = is_missing.then(|| self.known.node());
        if missing == self.missing_node {
            return;
        }
        self.known.miss_node(is_missing);
        match &missing {
            Some(node) => {
                tracing::error!(node, field = "hostnameOverride", "{}", missing_node(node));
            }
            None => tracing::info!(node = self.known.node(), "the Node has appeared in the API"),
        }
        self.missing_node = missing;
    }

    fn count(&self, tally: &Tally) {
        for commit in &tally.commits {
            self.metrics.committed(commit.bytes, commit.took);
        }
        self.metrics.generation_conflicts(tally.overtaken);
        self.metrics.commits_refused(tally.refused);
    }

    /// How long it took from the causes of a sync to the kernel.
    fn count_causes(&self, causes: &[Cause], wrote: bool) {
        let (now, today) = (Instant::now(), SystemTime::now());
        for cause in causes {
            if wrote {
                self.metrics.event_committed(now.saturating_duration_since(cause.received));
            }
            for (family, trigger) in &cause.triggers {
                // The clock of the node that wrote it may be ahead of ours.
                let after = today.duration_since(*trigger).unwrap_or_default();
                self.metrics.network_programmed(*family, after);
            }
        }
    }

    fn sweep(&self, flows: Flows, dataplane: &Dataplane) {
        let (Some(sweeps), false) = (&self.sweeps, flows.is_empty()) else { return };
        if let Some(sweep) = sweep(flows, dataplane) {
            // The thread is gone only if the process is ending.
            let _ = sweeps.send(sweep);
        }
    }
}

/// What there is, for gauges. All of it has been counted already.
fn state(dataplane: &Dataplane) -> State {
    let counts = Family::ALL.map(|family| dataplane.counts(family));
    let elements = |set: Set| counts.map(|(_, elements)| elements[set as usize]);
    let sets = Set::ALL.into_iter().filter(|set| *set != Set::Affinity);
    let no_local = dataplane.desired().no_local();
    State {
        services: dataplane.store().service_count(),
        endpoint_slices: dataplane.store().slice_count(),
        frontends: counts.map(|(frontends, _)| frontends),
        elements: sets.map(|set| (set.name(), elements(set))).collect(),
        frontend_conflicts: dataplane.conflicts().count(),
        quarantined_service_ports: dataplane.quarantined_service_ports(),
        no_local_internal: no_local.internal,
        no_local_external: no_local.external,
    }
}

/// Logs on which addresses node ports answer.
pub(super) fn log_node_ports(dataplane: &Dataplane) {
    let Some(surroundings) = dataplane.desired().surroundings() else { return };
    let node_ports = NodePorts::of(surroundings);
    let primary = surroundings.options.node_port_addresses == NodePortAddresses::Primary;
    if primary && node_ports == NodePorts::default() {
        tracing::warn!(
            node = surroundings.node_name,
            "node ports answer on {node_ports}: nodePortAddresses is primary, and there is no Node \
             object that has primary addresses"
        );
    } else {
        tracing::info!("node ports answer on {node_ports}");
    }
}

/// The sweep that follows from changed flows.
pub(super) fn sweep(flows: Flows, dataplane: &Dataplane) -> Option<Sweep> {
    let surroundings = dataplane.desired().surroundings()?;
    Some(Sweep::new(flows, node_addresses(surroundings)))
}

/// Every address on which NodePorts are offered.
fn node_addresses(surroundings: &Surroundings) -> BTreeSet<IpAddr> {
    let of = |family| match surroundings.node_port_addresses(family) {
        Some(addresses) => addresses,
        None => {
            let all = surroundings.interface_addresses.iter().copied();
            all.filter(|a| Family::of(*a) == family && !a.is_loopback()).collect()
        }
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

/// Where load balancers are told what: on the addresses of NodePorts.
fn service_healths(dataplane: &Dataplane) -> ServiceHealths {
    let Some(surroundings) = dataplane.desired().surroundings() else {
        return ServiceHealths::new();
    };
    let mut healths = ServiceHealths::new();
    for check in dataplane.desired().health_checks() {
        let all: IpAddr = match check.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let addresses = surroundings.node_port_addresses(check.family);
        for address in addresses.unwrap_or_else(|| BTreeSet::from([all])) {
            // Two Services with one port: the first by name keeps it, the API allows no second.
            healths.entry(SocketAddr::new(address, check.port)).or_insert_with(|| ServiceHealth {
                service: check.service.clone(),
                local_endpoints: check.local_endpoints,
            });
        }
    }
    healths
}

/// Says what the kernel refuses, and what to do.
pub(super) fn report_refused(quarantined: &Quarantined, next: &str) {
    tracing::error!(
        frontend = %quarantined.what,
        "the kernel refuses it, so it stays as it was while all else is programmed; {next}: {}",
        quarantined.reason
    );
}

/// Says who goes without what, and where to mend it.
pub(super) fn report_conflict(conflict: &Conflict, store: &Store, locations: &Locations) {
    let Conflict { frontend, winner, loser, reason } = conflict;
    let service = store.service(loser);
    let field = match frontend {
        FrontendKey::NodePort(..) => "spec.ports.nodePort",
        FrontendKey::Address(address, ..) => match service {
            Some(service) if service.cluster_ips.contains(address) => "spec.clusterIPs",
            Some(service) if service.external_ips.contains(address) => "spec.externalIPs",
            _ => "status.loadBalancer.ingress",
        },
    };
    let owner = match locations.of(winner) {
        Some(Location { file, line }) => format!("{winner} ({}:{line})", file.display()),
        None => winner.to_string(),
    };
    let reason = format!(
        "{frontend} belongs to Service {owner}: {reason}; it is left out here until that Service \
         gives it up; change one of them"
    );
    let mut problem = Problem::new(Severity::Warning, FieldPath::dotted(field), reason)
        .of_object(format_args!("Service {loser}"))
        .with_value(frontend);
    if let Some(Location { file, line }) = locations.of(loser) {
        problem = problem.in_file(&file, Some(line));
    }
    problem.log();
}

pub(super) fn log_synced(wrote: Option<SyncReport>, took: Duration, dataplane: &Dataplane) {
    match wrote {
        Some(report) => tracing::debug!(
            generation = report.generation,
            added = report.added,
            deleted = report.deleted,
            messages = report.messages,
            bytes = report.bytes,
            frontends = dataplane.frontend_count(),
            ?took,
            "committed"
        ),
        None => tracing::trace!(
            frontends = dataplane.frontend_count(),
            refused_service_ports = dataplane.quarantined_service_ports(),
            ?took,
            "nothing to write: the kernel holds what is planned, but for what it refuses"
        ),
    }
}
