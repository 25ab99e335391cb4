//! The state of the dataplane for its observers: one immutable value per sync.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use shunt_core::model::{Family, ObjectName, Store};
use shunt_core::plan::{
    Conflict, Desired, FrontendKey, HealthCheck, NodeContext, Options, Set, Unserved,
};

use super::quarantine::{Quarantine, Suspect};
use super::record::TableCounts;
use super::refusal::describe;
use super::state::Current;

/// The dataplane as of a sync.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// No other process can modify shunt's tables.
    pub is_owner: bool,
    /// The objects that the kernel is programmed for.
    pub store: Store,
    /// The number of syncs with changes of the sources until then.
    pub revision: u64,
    /// The number of frontends in the kernel, by family.
    pub frontends: [usize; 2],
    /// The number of elements of each set, by family. Without [`Set::Affinity`], which rules fill.
    pub elements: [[usize; Set::ALL.len()]; 2],
    /// The number of gone endpoints in the kernel, by family: connections to them are reset.
    pub gone_endpoints: [usize; 2],
    /// The node context of the plan; `None` before the first plan.
    pub node_context: Option<Arc<NodeContext>>,
    /// The health checks of load balancers for Services: the same value until one changes.
    pub health_checks: Arc<BTreeSet<HealthCheck>>,
    /// The numbers of service ports without an endpoint for some traffic.
    pub unserved: Unserved,
    /// The Services whose hash tables or weights would need too many elements.
    pub oversized: BTreeSet<ObjectName>,
    /// The frontends that several Services claim.
    pub conflicts: BTreeSet<SpecConflict>,
    /// The refused frontends and members, in order.
    pub quarantined: Vec<Quarantined>,
    /// The number of service ports with a refused frontend; without any, the number of refused
    /// addresses.
    pub quarantined_service_ports: usize,
}

/// A conflict, with the field of the losing Service that claims the frontend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpecConflict {
    /// The frontend, its winner and its loser.
    pub conflict: Conflict,
    /// The path of the field.
    pub field: &'static str,
}

/// A frontend or member in quarantine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The frontend or member.
    pub suspect: Suspect,
    /// Its description, with the service port.
    pub what: String,
    /// The Service of the frontend.
    pub service: Option<ObjectName>,
    /// The kernel's reason.
    pub reason: Arc<str>,
    /// The time of the retry.
    pub retry_at: Instant,
}

impl Snapshot {
    /// Returns the options of the plan; the defaults before the first plan.
    #[must_use]
    pub fn options(&self) -> Options {
        self.node_context.as_ref().map_or_else(Options::default, |it| it.options.clone())
    }

    pub(super) fn of(
        store: &Store,
        desired: &Desired,
        current: Option<&Current>,
        quarantine: &Quarantine,
    ) -> Snapshot {
        let counts = Family::ALL.map(|family| {
            current.map_or(TableCounts::default(), |known| *known.record.counts(family))
        });
        let quarantined: Vec<Quarantined> = quarantined(desired, quarantine).collect();
        Snapshot {
            is_owner: current.is_some_and(|current| current.record.is_owned()),
            store: store.clone(),
            revision: 0,
            frontends: counts.map(|counts| counts.frontends),
            elements: counts.map(|counts| counts.elements),
            gone_endpoints: Family::ALL
                .map(|family| current.map_or(0, |known| known.record.gone(family).len())),
            node_context: desired.node_context().cloned(),
            health_checks: desired.health_checks().clone(),
            unserved: desired.unserved(),
            oversized: desired.oversized().clone(),
            conflicts: desired
                .conflicts()
                .map(|conflict| SpecConflict::new(conflict, store))
                .collect(),
            quarantined_service_ports: service_ports(desired, &quarantined),
            quarantined,
        }
    }
}

/// Returns the first of each Service and reason, with the number of its others: one large Service may
/// have thousands of frontends.
pub fn by_service<'a>(
    all: impl Iterator<Item = &'a Quarantined>,
) -> impl Iterator<Item = (&'a Quarantined, usize)> {
    let mut groups: BTreeMap<_, (&Quarantined, usize)> = BTreeMap::new();
    for one in all {
        let group = groups.entry((&one.service, &one.reason));
        group.and_modify(|(_, others)| *others += 1).or_insert((one, 0));
    }
    groups.into_values()
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
    /// Finds the field of the losing Service in the store.
    #[must_use]
    pub fn new(conflict: Conflict, store: &Store) -> SpecConflict {
        let field = match conflict.frontend {
            FrontendKey::NodePort(..) => "spec.ports.nodePort",
            FrontendKey::Address(address, ..) => match store.service(&conflict.loser) {
                Some(service) if service.cluster_ips.contains(&address) => "spec.clusterIPs",
                Some(service) if service.external_ips.contains(&address) => "spec.externalIPs",
                _ => "status.loadBalancer.ingress",
            },
        };
        SpecConflict { conflict, field }
    }
}
