//! Makes a picture from objects, their plan and the kernel's verdicts: no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shunt_core::explain::{EndpointView, Finding, NotUsed, frontend_view, why_ignored};
use shunt_core::model::{self, Backend, Family, ObjectName, Protocol, ServicePort, TrafficPolicy};
use shunt_core::plan::{self, FrontendKey, FrontendKind, SourceRange, loopback_address};

use super::{Frontend, Ignored, Picture, ServiceRow, ShortCircuit};
use crate::commands::explain::Subject;
use crate::commands::objects::{kind_word, place};
use crate::dataplane::{FrontendVerdict, Verdicts};
use crate::serve::status::{Problem, now};

/// The Services of a picture; by default all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selected {
    /// Those of this namespace.
    pub namespace: Option<String>,
    /// The Service of this name, with its endpoints.
    pub service: Option<ObjectName>,
    /// Its port of this name or number.
    pub port: Option<String>,
}

impl Selected {
    pub(super) fn has(&self, name: &ObjectName) -> bool {
        self.namespace.as_deref().is_none_or(|wanted| wanted == &*name.namespace)
            && self.service.as_ref().is_none_or(|wanted| wanted == name)
    }

    pub(super) fn has_port(&self, it: &Frontend) -> bool {
        self.port.as_ref().is_none_or(|port| *port == it.port_name || *port == it.port.to_string())
    }
}

/// The state of the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Kernel<'a> {
    /// The verdicts; `None` if they are unknown.
    pub verdicts: Option<&'a Verdicts>,
    /// The verdicts of the last picture, and the time since then.
    pub before: Option<(&'a Verdicts, Duration)>,
    /// The frontends whose verdicts differ from the plan for certain.
    pub differing: BTreeSet<FrontendKey>,
}

/// Returns the planned frontends of these Services whose verdicts in the kernel are others.
pub(super) fn differing(
    Subject { store, desired, .. }: Subject<'_>,
    selected: &Selected,
    verdicts: &Verdicts,
) -> BTreeSet<FrontendKey> {
    let services = store.services().filter(|service| selected.has(&service.name));
    let owned = services.flat_map(|service| {
        let keys = desired.claimed_by(&service.name);
        keys.filter(|key| desired.service_of(*key) == Some(&service.name))
    });
    let differs = |key: &FrontendKey| {
        let Some(planned) = desired.frontend(*key) else { return false };
        let Some(found) = verdicts.get(key) else { return true };
        let planned = planned.sized(*key, |pools| found.slots(pools));
        let set = plan::Frontend::pools_of(*key).1.verdicts();
        let short_circuit = planned.decisions(*key).find(|element| element.set == set);
        !found.main.exists
            || found.main.value != planned.verdict(*key).value
            || found.short_circuit.value != short_circuit.and_then(|element| element.value)
    };
    owned.filter(differs).collect()
}

/// Makes a picture.
pub(super) fn picture(
    sources: Subject<'_>,
    kernel: Kernel<'_>,
    selected: &Selected,
    problems: Vec<Problem>,
) -> Picture {
    let Subject { store, desired, agent } = sources;
    let locality = desired.node_context().map(|context| context.locality()).unwrap_or_default();
    let painter = Painter { sources, kernel, detailed: selected.service.is_some() };
    let services = store.services().filter(|service| selected.has(&service.name));
    let ignored = store.ignored().keys().filter(|name| selected.has(name));
    let ignored = ignored.filter_map(|name| {
        let finding = why_ignored(name, store)?;
        Some(Ignored { name: name.clone(), code: finding.code.as_str(), reason: finding.text })
    });
    Picture {
        taken: now(),
        node: locality.node.to_owned(),
        zone: locality.zone.map(str::to_owned),
        source: if agent.is_some() { "agent" } else { "manifests" },
        revision: agent.map(|agent| agent.revision),
        problems,
        states: BTreeMap::new(),
        services: services.map(|service| painter.service(service)).collect(),
        ignored: ignored.collect(),
        detailed: selected.service.is_some(),
    }
}

impl Frontend {
    /// Returns a frontend with its names and place only.
    pub(super) fn at(key: FrontendKey, service: &str, port_name: &str) -> Frontend {
        let (address, port) = place(key);
        Frontend {
            service: service.to_owned(),
            port_name: port_name.to_owned(),
            address,
            port,
            protocol: key.protocol().to_string().to_uppercase(),
            family: key.family().to_string(),
            ..Frontend::default()
        }
    }
}

struct Painter<'a> {
    sources: Subject<'a>,
    kernel: Kernel<'a>,
    detailed: bool,
}

impl Painter<'_> {
    fn service(&self, service: &model::Service) -> ServiceRow {
        let mut keys: Vec<(usize, FrontendKind, FrontendKey)> = self
            .sources
            .desired
            .claimed_by(&service.name)
            .filter_map(|key| {
                let place = service.ports.iter().position(|port| key.is_of(port))?;
                Some((place, self.sources.desired.kind_of(&service.name, key)?, key))
            })
            .collect();
        keys.sort_unstable();
        let frontends = keys.into_iter().filter_map(|(place, kind, key)| {
            Some(self.frontend(service, service.ports.get(place)?, kind, key))
        });
        ServiceRow {
            name: service.name.clone(),
            internal_traffic_policy: policy_word(service.internal_policy),
            external_traffic_policy: policy_word(service.external_policy),
            session_affinity_seconds: service.affinity_seconds,
            source_ranges: service.source_ranges.iter().map(ToString::to_string).collect(),
            health_check_node_port: service.health_check_node_port,
            frontends: frontends.collect(),
        }
    }

    fn frontend(
        &self,
        service: &model::Service,
        port: &ServicePort,
        kind: FrontendKind,
        key: FrontendKey,
    ) -> Frontend {
        let Subject { store, desired, .. } = self.sources;
        let node_addresses = match key {
            FrontendKey::Address(..) => None,
            FrontendKey::NodePort(family, protocol, _) => desired
                .node_context()
                .and_then(|context| Some((context, context.node_port_addresses(family)?)))
                .map(|(context, addresses)| {
                    let is_on = context.options.node_port_addresses.has_loopback(family);
                    let loopback =
                        (is_on && protocol == Protocol::Tcp).then(|| loopback_address(family));
                    addresses.into_iter().chain(loopback).collect::<Vec<_>>()
                })
                // Manifests do not tell the addresses of interfaces.
                .filter(|addresses| self.sources.agent.is_some() || !addresses.is_empty()),
        };
        let policy = match kind {
            FrontendKind::ClusterIp => service.internal_policy,
            _ => service.external_policy,
        };
        let is_owner = desired.service_of(key) == Some(&service.name);
        let planned = desired.frontend(key).filter(|_| is_owner);
        let view = planned.and_then(|_| frontend_view(key, store, desired));
        let (views, finding) = view.unwrap_or_default();
        let has_no_address = node_addresses.as_ref().is_some_and(Vec::is_empty);
        let (state, reason) = self.state(service, key, planned.is_some(), finding, has_no_address);
        let frontend = Frontend {
            kind: kind_word(kind),
            node_addresses,
            policy: policy_word(policy),
            state,
            reason,
            ..Frontend::at(key, &plan::label(service, port), &port.name)
        };
        let Some(planned) = planned else { return frontend };
        let of_family = |view: &EndpointView| view.why != Some(NotUsed::OtherFamily);
        let listed = views.iter().filter(|view| of_family(view)).count();
        let verdict = self.kernel.verdicts.map(|all| all.get(&key));
        let connections = verdict.map(|it| it.map_or(0, FrontendVerdict::connections));
        let pool: &[Backend] = planned.main_pool().map_or(&[], |pool| pool);
        let short_circuit = (!planned.short_circuit.is_empty()).then(|| ShortCircuit {
            endpoints_used: backends(&planned.short_circuit),
            new_connections: verdict.map(|it| it.map_or(0, |it| it.short_circuit.connections)),
        });
        let topology = topology(&views);
        // Those of the other family matter only if there are no others.
        let shown = views.into_iter().filter(|view| listed == 0 || of_family(view));
        Frontend {
            endpoints_used: backends(pool),
            endpoints_listed: listed,
            new_connections: connections,
            new_connections_per_second: connections
                .and_then(|now| rate(key, now, self.kernel.before)),
            masquerade: planned.masquerade,
            topology,
            load_balancing: Some(planned.balancing.name()),
            session_affinity_seconds: planned.affinity,
            allowed_sources: planned
                .sources
                .as_ref()
                .map(|ranges| ranges.iter().map(range).collect()),
            short_circuit,
            endpoints: self.detailed.then(|| shown.collect()),
            ..frontend
        }
    }

    fn state(
        &self,
        service: &model::Service,
        key: FrontendKey,
        is_planned: bool,
        finding: Option<Finding>,
        has_no_address: bool,
    ) -> (&'static str, Option<String>) {
        let Subject { desired, agent, .. } = self.sources;
        if !is_planned {
            let mut conflicts = desired.conflicts();
            let lost = conflicts.find(|it| it.frontend == key && it.loser == service.name);
            let reason =
                lost.map(|it| format!("it belongs to Service {}: {}", it.winner, it.reason));
            return ("conflict", reason);
        }
        let mut quarantined = agent.iter().flat_map(|agent| &agent.status.rules.quarantined);
        let name = Some(key.to_string());
        if let Some(refused) = quarantined.find(|it| it.frontend == name) {
            return ("quarantined", Some(format!("the kernel refuses it: {}", refused.reason)));
        }
        if self.kernel.differing.contains(&key) {
            let verdict = self.kernel.verdicts.and_then(|verdicts| verdicts.get(&key));
            let (state, reason) = match verdict.is_some_and(|it| it.main.exists) {
                true => ("kernel-differs", "its element in the kernel is not the planned one"),
                false => ("not-in-kernel", "the kernel has no element for it"),
            };
            return (state, Some(format!("{reason}; see shunt status")));
        }
        if has_no_address {
            let reason = "nodePortAddresses selects no address of this family".to_owned();
            return ("no-address", Some(reason));
        }
        match finding {
            Some(finding) => (finding.code.as_str(), Some(finding.text)),
            None if desired.oversized().contains(&service.name) => {
                ("too-many-elements", Some(plan::OVERSIZED.to_owned()))
            }
            None => ("ok", None),
        }
    }
}

/// Returns the new connections a second since the last picture. A counter that is smaller than before
/// has started from zero.
pub(super) fn rate(
    key: FrontendKey,
    now: u64,
    before: Option<(&Verdicts, Duration)>,
) -> Option<f64> {
    let (before, time) = before?;
    let before = before.get(&key).map_or(0, FrontendVerdict::connections);
    let new = now.checked_sub(before).unwrap_or(now);
    (!time.is_zero()).then(|| new as f64 / time.as_secs_f64())
}

fn policy_word(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

/// Returns the hints that leave endpoints out.
fn topology(views: &[EndpointView]) -> Option<&'static str> {
    let has = |why| views.iter().any(|view| view.why == Some(why));
    match (has(NotUsed::OtherNode), has(NotUsed::OtherZone)) {
        (true, _) => Some("node"),
        (_, true) => Some("zone"),
        _ => None,
    }
}

/// Writes a range as a prefix, if it is one.
fn range(range: &SourceRange) -> String {
    let SourceRange { first, last } = *range;
    let longest: u8 = if Family::of(first) == Family::V4 { 32 } else { 128 };
    let prefix = (0..=longest)
        .filter_map(|length| ipnet::IpNet::new(first, length).ok())
        .find(|net| net.network() == first && net.broadcast() == last);
    match prefix {
        Some(net) => net.to_string(),
        None => format!("{first}-{last}"),
    }
}

/// Returns the number of backends. One that replaces others has several slots.
fn backends(pool: &[Backend]) -> usize {
    pool.iter().collect::<BTreeSet<_>>().len()
}
