//! The state that the agent notes for `shunt status`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use shunt_core::plan::{GONE_ENDPOINTS, Set};

use super::{
    Conflict, Counts, Families, NodePorts, Quarantined, Repair, Rules, Source, Status, Sync,
    SyncFailure, Time, Trouble, UnboundServer, Unserved, WithoutNode,
};
use crate::dataplane::kube_proxy::Found;
use crate::dataplane::{self, Snapshot, SpecConflict, Suspect, SyncReport};
use crate::flows::Unswept;
use crate::serve::http::{HealthSource, PortReport};
use crate::serve::loopback::LoopbackReport;
use crate::serve::metrics::Counter;
use crate::serve::unbound_ports::UnboundPorts;
use crate::source::kubernetes::ApiStatus;
use crate::taken_ports;

/// The maximum number of conflicts, and of refused frontends, that each sync notes.
const MAX_LISTED: usize = 1_000;

/// The noted state. Clones share it.
#[derive(Clone, Default)]
pub struct AgentState(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    node: String,
    /// Whether the API has no Node of the name, and what the rules go by meanwhile.
    without_node: Option<(bool, WithoutNode)>,
    /// By purpose.
    unbound_ports: BTreeMap<&'static str, UnboundServer>,
    source: Following,
    refused_configuration: Option<String>,
    rules: Rules,
    snapshot: Arc<Snapshot>,
    kube_proxy: Found,
}

/// What a report asks for.
pub struct Sources {
    /// The health.
    pub health: HealthSource,
    /// The state of the sweeps of connection tracking.
    pub unswept: Unswept,
    /// `healthCheckNodePort`s that the agent cannot bind.
    pub unbound: UnboundPorts,
    /// The proxy of node ports on loopback addresses.
    pub loopback: Box<dyn Fn() -> LoopbackReport + Send>,
    /// Other processes on node ports.
    pub taken_node_ports: Box<dyn Fn() -> taken_ports::Report + Send>,
    /// Lost lines of the log.
    pub lost_log_lines: Counter,
}

/// The current source of objects.
#[derive(Default)]
pub enum Following {
    /// No source has started.
    #[default]
    Nothing,
    /// Manifests in these files and directories.
    Manifests(Vec<PathBuf>),
    /// An API server.
    Api {
        /// The URL of the server.
        server: String,
        /// The state of the connection.
        api_status: Arc<ApiStatus>,
    },
}

impl AgentState {
    /// Makes the state of an agent that has not synced: its dataplane has this one.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> AgentState {
        let inner = Inner { snapshot: Arc::new(snapshot), ..Inner::default() };
        AgentState(Arc::new(Mutex::new(inner)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each value is consistent by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the dataplane as of the last sync; before that, what it knew at the start.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.lock().snapshot.clone()
    }

    /// Notes a new source and the node that it is for.
    pub fn follow(&self, node: &str, source: Following) {
        let mut inner = self.lock();
        node.clone_into(&mut inner.node);
        inner.source = source;
    }

    /// Returns the name of the node.
    #[must_use]
    pub fn node(&self) -> String {
        self.lock().node.clone()
    }

    /// Notes whether the API has no Node of the name, and what the rules go by meanwhile; `None` for
    /// a Node that it has sent.
    pub fn without_node(&self, how: Option<(bool, WithoutNode)>) {
        self.lock().without_node = how;
    }

    /// Notes a port that a server cannot bind, or has bound.
    pub fn port(&self, report: &PortReport<'_>) {
        let PortReport { purpose, field, address, error } = *report;
        let ports = &mut self.lock().unbound_ports;
        match error {
            None => drop(ports.remove(purpose)),
            Some(error) => {
                let (purpose_text, field) = (purpose.to_owned(), field.to_owned());
                let (address, reason) = (address.to_string(), error.to_string());
                let port = UnboundServer { purpose: purpose_text, field, address, reason };
                ports.insert(purpose, port);
            }
        }
    }

    /// Notes the result of a changed configuration: the reason if it was refused.
    pub fn reconfigured(&self, refused: Option<String>) {
        self.lock().refused_configuration = refused;
    }

    /// Notes a successful sync.
    pub fn synced(&self, wrote: Option<SyncReport>, took: Duration, snapshot: Arc<Snapshot>) {
        let report = wrote.unwrap_or_default();
        let sync = Sync {
            at: Time::now(),
            seconds: took.as_secs_f64(),
            added: report.added,
            deleted: report.deleted,
            bytes: report.bytes,
        };
        let inner = &mut *self.lock();
        if wrote.is_some() {
            inner.rules.last_commit = Some(sync.clone());
        }
        inner.rules.last_sync = Some(sync);
        inner.rules.failure = None;
        inner.snapshot = snapshot;
    }

    /// Notes a failed sync.
    pub fn failed(&self, error: &dataplane::Error) {
        self.lock().rules.failure =
            Some(SyncFailure { at: Time::now(), reason: error.to_string() });
    }

    /// Notes a repair of drift.
    pub fn repaired(&self, writers: &str) {
        let rules = &mut self.lock().rules;
        rules.drift_repairs += 1;
        rules.last_drift_repair = Some(Repair { at: Time::now(), writers: writers.to_owned() });
    }

    /// Notes kube-proxy and its leftovers.
    pub fn found_kube_proxy(&self, found: &Found) {
        self.lock().kube_proxy.clone_from(found);
    }

    /// Returns a function that makes a report, for [`serve`](crate::serve::query::serve).
    pub fn teller(self, sources: Sources) -> impl Fn() -> Status {
        let started = Time::now();
        let Sources { health, unswept, unbound, loopback, taken_node_ports, lost_log_lines } =
            sources;
        move || {
            let health = health();
            let taken_node_ports = taken_node_ports();
            let inner = self.lock();
            Status {
                // The command fills them (`judge`).
                problems: Vec::new(),
                warnings: Vec::new(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                process: std::process::id(),
                started,
                told: Time::now(),
                node: inner.node.clone(),
                missing_node: inner.without_node.is_some_and(|(is_missing, _)| is_missing),
                without_node: inner.without_node.map(|(_, how)| how),
                healthy: health.is_live(),
                waiting_seconds: health.waiting.map(|waiting| waiting.as_secs_f64()),
                unswept_seconds: health.unswept.map(|unswept| unswept.as_secs_f64()),
                sweep_trouble: unswept.trouble(),
                lost_log_lines: lost_log_lines.get(),
                source: source(&inner.source),
                refused_configuration: inner.refused_configuration.clone(),
                rules: rules(&inner.rules, &inner.snapshot),
                kube_proxy: inner.kube_proxy.clone(),
                taken_node_ports,
                unbound_ports: inner.unbound_ports.values().cloned().collect(),
                unbound_health_ports: unbound.list(),
                loopback: loopback(),
            }
        }
    }
}

fn source(following: &Following) -> Source {
    match following {
        Following::Nothing => Source::None,
        Following::Manifests(paths) => Source::Manifests { paths: paths.clone() },
        Following::Api { server, api_status } => Source::Api {
            server: server.clone(),
            trouble: api_status
                .trouble()
                .map(|(reason, lasts)| Trouble { reason, seconds: lasts.as_secs_f64() }),
        },
    }
}

/// Completes the notes with what the last sync left.
fn rules(notes: &Rules, snapshot: &Snapshot) -> Rules {
    Rules {
        generation: snapshot.generation,
        owns_tables: snapshot.is_owner,
        ipv4_only: snapshot.node_context.as_ref().is_some_and(|it| it.options.ipv4_only),
        node_ports: snapshot.node_context.as_deref().map(NodePorts::of),
        counts: counts(snapshot),
        quarantined: snapshot.quarantined.iter().take(MAX_LISTED).map(quarantined).collect(),
        conflicts: snapshot.conflicts.iter().take(MAX_LISTED).map(conflict).collect(),
        oversized: snapshot.oversized.iter().take(MAX_LISTED).map(ToString::to_string).collect(),
        unserved: Unserved::counts(&snapshot.unserved),
        ..notes.clone()
    }
}

/// Copies counts that the model and the record keep.
fn counts(snapshot: &Snapshot) -> Counts {
    let sets = Set::ALL.into_iter().filter(|set| *set != Set::Affinity);
    let elements = |set: Set| snapshot.elements.map(|elements| elements[set as usize]).into();
    let gone: Families = snapshot.gone_endpoints.into();
    let gone = (gone != Families::default()).then(|| (GONE_ENDPOINTS.to_owned(), gone));
    Counts {
        services: snapshot.store.service_count(),
        service_ports: snapshot.store.service_port_count(),
        endpoint_slices: snapshot.store.slice_count(),
        endpoints: snapshot.store.endpoint_count(),
        frontends: snapshot.frontends.into(),
        elements: sets.map(|set| (set.name().to_owned(), elements(set))).chain(gone).collect(),
    }
}

fn quarantined(quarantined: &dataplane::Quarantined) -> Quarantined {
    let wait = quarantined.retry_at.saturating_duration_since(Instant::now());
    Quarantined {
        what: quarantined.what.clone(),
        frontend: match quarantined.suspect {
            Suspect::Frontend(key) => Some(key.to_string()),
            Suspect::Member(..) => None,
        },
        reason: quarantined.reason.to_string(),
        retry_at: Time(SystemTime::now() + wait),
    }
}

fn conflict(SpecConflict { conflict, .. }: &SpecConflict) -> Conflict {
    Conflict {
        frontend: conflict.frontend.to_string(),
        winner: conflict.winner.to_string(),
        loser: conflict.loser.to_string(),
        reason: conflict.reason.to_string(),
    }
}
