//! Makes a picture from the kernel's verdict maps alone: no I/O. Their comments name the Services.

use std::collections::BTreeMap;

use shunt_core::model::ObjectName;
use shunt_core::plan::{self, FrontendKey};

use super::{Frontend, Kernel, Picture, Selected, ServiceRow, ShortCircuit, rate};
use crate::serve::status::{Problem, now};

/// What only the objects tell.
const UNKNOWN: &str = "unknown";

/// Makes a picture of a node without an agent.
pub(super) fn picture_of_kernel(
    kernel: &Kernel<'_>,
    selected: &Selected,
    problems: Vec<Problem>,
) -> Picture {
    let mut services: BTreeMap<ObjectName, BTreeMap<FrontendKey, Frontend>> = BTreeMap::new();
    for (key, verdict) in kernel.verdicts.into_iter().flatten() {
        let (name, port_name) = verdict.label.split_once(':').unwrap_or((&verdict.label, ""));
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let name = ObjectName::new(namespace, name);
        if !selected.has(&name) {
            continue;
        }
        let (main, short_circuit) = plan::Frontend::pools_of(*key);
        let endpoints = verdict.slots(main);
        let frontend = Frontend {
            kind: match key {
                FrontendKey::Address(..) => UNKNOWN,
                FrontendKey::NodePort(..) => "NodePort",
            },
            policy: UNKNOWN,
            endpoints_used: endpoints,
            endpoints_listed: endpoints,
            new_connections: Some(verdict.connections()),
            new_connections_per_second: rate(*key, verdict.connections(), kernel.before),
            state: "no-agent",
            short_circuit: verdict.short_circuit.exists.then(|| ShortCircuit {
                endpoints_used: verdict.slots(short_circuit),
                new_connections: Some(verdict.short_circuit.connections),
            }),
            ..Frontend::at(*key, &verdict.label, port_name)
        };
        services.entry(name).or_default().insert(*key, frontend);
    }
    let services = services.into_iter().map(|(name, frontends)| ServiceRow {
        name,
        internal_traffic_policy: UNKNOWN,
        external_traffic_policy: UNKNOWN,
        session_affinity_seconds: None,
        source_ranges: Vec::new(),
        health_check_node_port: None,
        frontends: frontends.into_values().collect(),
    });
    Picture {
        taken: now(),
        node: String::new(),
        zone: None,
        source: "kernel",
        revision: None,
        problems,
        states: BTreeMap::new(),
        services: services.collect(),
        ignored: Vec::new(),
        detailed: selected.service.is_some(),
    }
}
