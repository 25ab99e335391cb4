//! `shunt diff --with` and `--at`: a plan beside another one.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;
use shunt_core::model::ObjectName;
use shunt_core::plan::{Conflict, Desired, Frontend, FrontendKey, Outcome};

use super::with::Examples;
use crate::dataplane::bytes_between;
use crate::serve::{escape, status};
use crate::taken_ports::{NodePorts, TakenPort, TakenPorts};

/// What changes on this node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Changes {
    /// The frontends that change.
    frontends: Vec<Changed>,
    /// New conflicts.
    conflicts: Vec<status::Conflict>,
    /// New node ports on which processes listen.
    taken_node_ports: TakenPorts,
    /// The number of elements in the tables, now and then.
    elements: [usize; 2],
    /// The size of the transaction, without new rules, in bytes.
    bytes: usize,
}

/// A frontend that changes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Changed {
    /// The service port, as `namespace/name:port`.
    service: String,
    frontend: String,
    change: Change,
    /// The number of endpoints, now and then.
    endpoints: [usize; 2],
    added: BTreeSet<SocketAddr>,
    removed: BTreeSet<SocketAddr>,
    /// Other properties that change.
    properties: Vec<&'static str>,
    /// Why new connections fail that succeed now.
    loses_service: Option<String>,
    /// The ClusterIP or node port is an example: the API server chooses it.
    is_example: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Change {
    New,
    Changed,
    Gone,
}

impl Changes {
    /// Compares two plans.
    pub(super) fn new(now: &Desired, then: &Desired, examples: &Examples) -> Changes {
        let (before, after) = (now.frontends(), then.frontends());
        let keys: BTreeSet<FrontendKey> = before.keys().chain(after.keys()).copied().collect();
        let changed = |key: FrontendKey| {
            let (old, new) = (before.get(&key).copied(), after.get(&key).copied());
            let thief = then
                .service_of(key)
                .filter(|&new| now.service_of(key).is_some_and(|old| old != new));
            (old != new).then(|| Changed::new(key, old, new, thief, examples))
        };
        let known: BTreeSet<Conflict> = now.conflicts().collect();
        let conflicts = then.conflicts().filter(|conflict| !known.contains(conflict));
        let count = |plan: &Desired| {
            let frontends = plan.frontends();
            let elements = frontends.iter().map(|(key, frontend)| frontend.elements(*key).count());
            elements.sum::<usize>() + plan.members().len()
        };
        Changes {
            frontends: keys.into_iter().filter_map(changed).collect(),
            conflicts: conflicts.map(|it| (&it).into()).collect(),
            taken_node_ports: TakenPorts::default(),
            elements: [count(now), count(then)],
            bytes: bytes_between(now, then),
        }
    }

    /// Notes the processes that listen on new node ports of this node.
    pub(super) fn look_for_taken(&mut self, now: &Desired, then: &Desired) {
        let Some(context) = then.node_context() else { return };
        let addresses = context.own_node_port_addresses();
        let is_new = |key: &FrontendKey| {
            matches!(key, FrontendKey::NodePort(..)) && now.frontend(*key).is_none()
        };
        let keys = then.frontends().into_keys().filter(is_new);
        let ports = keys.filter_map(|key| Some((key, then.service_of(key)?.clone())));
        self.taken_node_ports = TakenPorts::of_now(&NodePorts(ports.collect()), &addresses);
    }

    /// Returns true if new connections fail that succeed now.
    pub(super) fn loses_service(&self) -> bool {
        self.frontends.iter().any(|frontend| frontend.loses_service.is_some())
    }
}

impl Changed {
    fn new(
        key: FrontendKey,
        old: Option<&Frontend>,
        new: Option<&Frontend>,
        thief: Option<&ObjectName>,
        examples: &Examples,
    ) -> Changed {
        let (before, after) = (endpoints(old), endpoints(new));
        let is_served = |it: &&Frontend| matches!(it.outcome, Outcome::Balance(_));
        let loses_service = match (thief, new.map(|new| &new.outcome)) {
            (Some(thief), _) => Some(format!("Service {thief} takes it over")),
            (None, Some(Outcome::Balance(_))) => None,
            (None, Some(Outcome::Reject)) => {
                Some("no endpoint, so connections are refused".to_owned())
            }
            (None, Some(Outcome::Drop)) => {
                Some("no endpoint on this node, so packets are dropped (policy Local)".to_owned())
            }
            (None, None) => Some("the frontend is gone".to_owned()),
        };
        let properties = old.zip(new).map(|(old, new)| {
            let differ = [
                ("choice of endpoints", old.balancing != new.balancing),
                ("masquerading", old.masquerade != new.masquerade),
                ("endpoints for clients on this node", old.short_circuit != new.short_circuit),
                ("session affinity", old.affinity != new.affinity),
                ("allowed sources", old.sources != new.sources),
            ];
            differ.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
        });
        Changed {
            service: old.or(new).map_or_else(String::new, |it| it.label.to_string()),
            frontend: key.to_string(),
            change: match (old, new) {
                (None, _) => Change::New,
                (_, None) => Change::Gone,
                _ => Change::Changed,
            },
            endpoints: [before.len(), after.len()],
            added: &after - &before,
            removed: &before - &after,
            properties: properties.unwrap_or_default(),
            loses_service: loses_service.filter(|_| old.filter(is_served).is_some()),
            is_example: match key {
                FrontendKey::Address(address, ..) => examples.cluster_ips.contains(&address),
                FrontendKey::NodePort(_, _, port) => examples.node_ports.contains(&port),
            },
        }
    }
}

/// Returns the endpoints of a frontend, each once.
fn endpoints(frontend: Option<&Frontend>) -> BTreeSet<SocketAddr> {
    let pool = frontend.and_then(Frontend::main_pool).into_iter().flat_map(|pool| pool.iter());
    pool.map(|backend| SocketAddr::new(backend.address, backend.port)).collect()
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Changes { frontends, conflicts, taken_node_ports, elements: [now, then], bytes } = self;
        if frontends.is_empty() {
            writeln!(f, "nothing changes on this node")?;
        } else {
            let losing = frontends.iter().filter(|it| it.loses_service.is_some()).count();
            let all = frontends.len();
            writeln!(
                f,
                "changed frontends: {all}, losing service: {losing}; elements: {now} -> {then}, in a \
                 transaction of {bytes} bytes"
            )?;
        }
        for changed in frontends {
            writeln!(f, "\n{changed}")?;
        }
        for conflict in conflicts {
            writeln!(f, "\nconflict: {conflict}")?;
        }
        if let Some(trouble) = &taken_node_ports.trouble {
            writeln!(f, "\ncannot look for processes on node ports: {trouble}")?;
        }
        for taken in &taken_node_ports.ports {
            let TakenPort { service, port, protocol, .. } = taken;
            writeln!(f, "\nnode port {port}/{protocol} of {service} is taken: {}", taken.remedy())?;
        }
        Ok(())
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = self.endpoints;
        write!(f, "{} {}: ", escape::line(&self.service), self.frontend)?;
        match (&self.loses_service, &self.change) {
            (Some(why), _) => write!(f, "loses service: {}", escape::line(why))?,
            (None, Change::New) => write!(f, "new, endpoints: {after}")?,
            (None, Change::Gone) => write!(f, "gone, had no endpoint")?,
            (None, Change::Changed) if before == after => write!(f, "endpoints: {after}")?,
            (None, Change::Changed) => write!(f, "endpoints: {before} -> {after}")?,
        }
        if !self.properties.is_empty() {
            write!(f, "; changed: {}", self.properties.join(", "))?;
        }
        if self.is_example {
            write!(f, " (an example: the API server allocates the real one)")?;
        }
        self.removed.iter().try_for_each(|it| write!(f, "\n  - {it}"))?;
        self.added.iter().try_for_each(|it| write!(f, "\n  + {it}"))
    }
}
