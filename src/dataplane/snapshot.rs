//! What others may know of the dataplane: one immutable value for each sync.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use shunt_core::model::{Family, ObjectName, Store};
use shunt_core::plan::{Conflict, Desired, FrontendKey, HealthCheck, NoLocal, NodeContext, Set};

use super::quarantine::{Quarantine, Suspect};
use super::record::Counts;
use super::refusal::describe;
use super::state::Current;

/// The dataplane as of a sync.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The generation of nf_tables that the record of what the kernel holds is about, if there is a record.
    pub generation: Option<u32>,
    /// No other process can change our tables.
    pub is_owner: bool,
    /// How many objects the sources have listed.
    pub objects: ObjectCounts,
    /// How many frontends the kernel holds, by family.
    pub frontends: [usize; 2],
    /// How many elements each set has, by family. Without [`Set::Affinity`], which rules fill.
    pub elements: [[usize; Set::ALL.len()]; 2],
    /// Entries of session affinity are listed, or will be, to delete stale ones behind the commit.
    pub is_sweeping: bool,
    /// Whether load balancers may send traffic to our Node; `None` if there is no such Node.
    pub node_is_eligible: Option<bool>,
    /// What all Services have in common, once something was planned.
    pub node_context: Option<Arc<NodeContext>>,
    /// What load balancers are told about Services.
    pub health_checks: Vec<HealthCheck>,
    /// How many service ports with policy Local have endpoints elsewhere only.
    pub no_local: NoLocal,
    /// The frontends that several Services want.
    pub conflicts: BTreeSet<SpecConflict>,
    /// What the kernel refuses, in order.
    pub quarantined: Vec<Quarantined>,
    /// How many service ports are kept from the kernel, because it refuses a frontend of theirs; or,
    /// if there are none, how many addresses it refuses on their own.
    pub quarantined_service_ports: usize,
}

/// Numbers of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Services.
    pub services: usize,
    /// Ports of Services.
    pub service_ports: usize,
    /// EndpointSlices.
    pub endpoint_slices: usize,
    /// Endpoints in EndpointSlices.
    pub endpoints: usize,
}

/// A conflict, and which field of the Service that goes without is to blame.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpecConflict {
    /// The conflict.
    pub conflict: Conflict,
    /// The path of the field.
    pub field: &'static str,
}

/// Something that the kernel refuses and that is therefore left out for the time being.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Which frontend or member it is.
    pub suspect: Suspect,
    /// The same in words, with the service port.
    pub what: String,
    /// The Service that has the frontend.
    pub service: Option<ObjectName>,
    /// The kernel's reason.
    pub reason: Arc<str>,
    /// When it is tried again.
    pub retry_at: Instant,
}

impl Snapshot {
    pub(super) fn of(
        store: &Store,
        desired: &Desired,
        current: Option<&Current>,
        quarantine: &Quarantine,
        is_sweeping: bool,
    ) -> Snapshot {
        let counts = Family::ALL
            .map(|family| current.map_or(Counts::default(), |known| *known.record.counts(family)));
        let quarantined: Vec<Quarantined> = quarantined(desired, quarantine).collect();
        Snapshot {
            generation: current.map(|current| current.generation),
            is_owner: current.is_some_and(|current| current.record.is_owned()),
            objects: ObjectCounts {
                services: store.service_count(),
                service_ports: store.service_port_count(),
                endpoint_slices: store.slice_count(),
                endpoints: store.endpoint_count(),
            },
            frontends: counts.map(|counts| counts.frontends),
            elements: counts.map(|counts| counts.elements),
            is_sweeping,
            node_is_eligible: store.node().map(|node| node.eligible),
            node_context: desired.node_context().cloned(),
            health_checks: desired.health_checks().cloned().collect(),
            no_local: desired.no_local(),
            conflicts: desired
                .conflicts()
                .map(|conflict| SpecConflict::new(conflict, store))
                .collect(),
            quarantined_service_ports: service_ports(desired, &quarantined),
            quarantined,
        }
    }
}

fn quarantined(desired: &Desired, quarantine: &Quarantine) -> impl Iterator<Item = Quarantined> {
    quarantine.entries().map(|(suspect, reason, retry_at)| Quarantined {
        suspect,
        what: describe(suspect, desired),
        service: match suspect {
            Suspect::Frontend(key) => desired.service_of(key).cloned(),
            Suspect::Member(..) => None,
        },
        reason: reason.clone(),
        retry_at,
    })
}

fn service_ports(desired: &Desired, quarantined: &[Quarantined]) -> usize {
    let label = |one: &Quarantined| match one.suspect {
        Suspect::Frontend(key) => desired.frontend(key).map(|frontend| frontend.label.clone()),
        Suspect::Member(..) => None,
    };
    let ports: BTreeSet<Arc<str>> = quarantined.iter().filter_map(label).collect();
    if ports.is_empty() { quarantined.len() } else { ports.len() }
}

impl SpecConflict {
    /// Finds the field in the Service, as the store has it.
    #[must_use]
    pub fn new(conflict: &Conflict, store: &Store) -> SpecConflict {
        let field = match conflict.frontend {
            FrontendKey::NodePort(..) => "spec.ports.nodePort",
            FrontendKey::Address(address, ..) => match store.service(&conflict.loser) {
                Some(service) if service.cluster_ips.contains(&address) => "spec.clusterIPs",
                Some(service) if service.external_ips.contains(&address) => "spec.externalIPs",
                _ => "status.loadBalancer.ingress",
            },
        };
        SpecConflict { conflict: conflict.clone(), field }
    }
}
