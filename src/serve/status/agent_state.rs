//! The state that the agent notes for `shunt status`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shunt_core::plan::{self, GONE_ENDPOINTS, Set};

use super::{
    AgentStatus, Conflict, Counts, Families, NodePortStatus, QuarantinedFrontend, Rules,
    SourceStatus, Sync, SyncFailure, Time, now,
};
use crate::dataplane::{self, Snapshot, Suspect, SyncReport};
use crate::serve::lock;

/// The maximum number of conflicts, and of refused frontends, that each sync notes.
const MAX_LISTED: usize = 1_000;

/// The noted state. Clones share it.
#[derive(Clone, Default)]
pub struct AgentState(Arc<Mutex<AgentStateInner>>);

#[derive(Default)]
struct AgentStateInner {
    /// The noted parts of a report. The others are asked for when it is made.
    noted: AgentStatus,
    source: Option<FollowedSource>,
    snapshot: Arc<Snapshot>,
    /// Whether load balancers may send traffic to the Node; `None` while it is unknown.
    node_is_eligible: Option<bool>,
}

/// Returns the source of objects with its state.
type FollowedSource = Box<dyn Fn() -> SourceStatus + Send>;

impl AgentState {
    /// Makes the state of an agent that has not synced: its dataplane has this one.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> AgentState {
        let noted = AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: std::process::id(),
            started: now(),
            ..AgentStatus::default()
        };
        let inner =
            AgentStateInner { noted, snapshot: Arc::new(snapshot), ..AgentStateInner::default() };
        AgentState(Arc::new(Mutex::new(inner)))
    }

    /// Returns the dataplane as of the last sync; before that, what it knew at the start.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        lock(&self.0).snapshot.clone()
    }

    /// Notes a new source and the node that it is for.
    pub fn follow(&self, node: &str, source: impl Fn() -> SourceStatus + Send + 'static) {
        let mut inner = lock(&self.0);
        node.clone_into(&mut inner.noted.node);
        inner.source = Some(Box::new(source));
    }

    /// Returns the name of the node.
    #[must_use]
    pub fn node(&self) -> String {
        lock(&self.0).noted.node.clone()
    }

    /// Changes the noted parts of a report.
    pub fn note(&self, change: impl FnOnce(&mut AgentStatus)) {
        change(&mut lock(&self.0).noted);
    }

    /// Notes a successful sync. Returns true if the one before it failed.
    pub fn synced(
        &self,
        wrote: Option<SyncReport>,
        took: Duration,
        snapshot: Arc<Snapshot>,
    ) -> bool {
        let report = wrote.unwrap_or_default();
        let sync = Sync {
            at: now(),
            seconds: took.as_secs_f64(),
            added: report.added,
            deleted: report.deleted,
            bytes: report.bytes,
        };
        let AgentStateInner { noted, snapshot: last, node_is_eligible, .. } = &mut *lock(&self.0);
        if wrote.is_some() {
            noted.rules.last_commit = Some(sync.clone());
        }
        noted.rules.last_sync = Some(sync);
        *node_is_eligible = snapshot.store.node().map(|node| node.eligible);
        *last = snapshot;
        noted.rules.failure.take().is_some()
    }

    /// Notes a failed sync. Returns true if the one before it did not fail for the same reason.
    pub fn failed(&self, reason: String, node_is_eligible: Option<bool>) -> bool {
        let inner = &mut *lock(&self.0);
        inner.node_is_eligible = node_is_eligible;
        let failure = SyncFailure { at: now(), reason };
        let before = inner.noted.rules.failure.replace(failure.clone());
        before.is_none_or(|before| before.reason != failure.reason)
    }

    /// Returns the time of the last successful sync, and whether the Node is eligible, if it is known.
    #[must_use]
    pub fn health(&self) -> (Option<Time>, Option<bool>) {
        let inner = lock(&self.0);
        (inner.noted.rules.last_sync.as_ref().map(|sync| sync.at), inner.node_is_eligible)
    }

    /// Returns what is noted, and what the last sync left.
    #[must_use]
    pub fn report(&self) -> AgentStatus {
        let inner = lock(&self.0);
        AgentStatus {
            told: now(),
            source: inner.source.as_ref().map(|source| source()).unwrap_or_default(),
            rules: rules(&inner.noted.rules, &inner.snapshot),
            ..inner.noted.clone()
        }
    }
}

/// Completes the notes with what the last sync left.
fn rules(notes: &Rules, snapshot: &Snapshot) -> Rules {
    Rules {
        owns_tables: snapshot.is_owner,
        ipv4_only: snapshot.node_context.as_ref().is_some_and(|it| it.options.ipv4_only),
        node_ports: snapshot.node_context.as_deref().map(NodePortStatus::of),
        counts: counts(snapshot),
        quarantined: snapshot.quarantined.iter().take(MAX_LISTED).map(quarantined).collect(),
        conflicts: snapshot
            .conflicts
            .iter()
            .take(MAX_LISTED)
            .map(|it| (&it.conflict).into())
            .collect(),
        oversized: snapshot.oversized.iter().take(MAX_LISTED).map(ToString::to_string).collect(),
        ..notes.clone()
    }
}

/// Copies counts that the model and the record keep.
fn counts(snapshot: &Snapshot) -> Counts {
    let sets = Set::ALL.into_iter().filter(|set| *set != Set::Affinity);
    let elements = |set: Set| snapshot.elements.map(|elements| elements[set as usize]).into();
    let gone: Families = snapshot.gone_endpoints.into();
    let gone = (gone != Families::default()).then(|| (GONE_ENDPOINTS.to_owned(), gone));
    let unserved = &snapshot.unserved;
    Counts {
        services: snapshot.store.service_count(),
        service_ports: snapshot.store.service_port_count(),
        endpoint_slices: snapshot.store.slice_count(),
        endpoints: snapshot.store.endpoint_count(),
        frontends: snapshot.frontends.into(),
        elements: sets.map(|set| (set.name().to_owned(), elements(set))).chain(gone).collect(),
        without_endpoints: unserved.without_endpoints.into(),
        no_local_internal: unserved.no_local_internal.into(),
        no_local_external: unserved.no_local_external.into(),
    }
}

fn quarantined(quarantined: &dataplane::Quarantined) -> QuarantinedFrontend {
    let wait = quarantined.retry_at.saturating_duration_since(Instant::now());
    QuarantinedFrontend {
        what: quarantined.what.clone(),
        frontend: match quarantined.suspect {
            Suspect::Frontend(key) => Some(key.to_string()),
            Suspect::Member(..) => None,
        },
        reason: quarantined.reason.to_string(),
        retry_at: now().checked_add(wait).unwrap_or_default(),
    }
}

impl From<&plan::Conflict> for Conflict {
    fn from(conflict: &plan::Conflict) -> Conflict {
        let plan::Conflict { frontend, winner, loser, reason } = conflict;
        Conflict {
            frontend: frontend.to_string(),
            winner: winner.to_string(),
            loser: loser.to_string(),
            reason: reason.to_string(),
        }
    }
}
