//! The objects of a snapshot that a command asks for.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use shunt_core::model::{ObjectName, Service};

use super::{Objects, Question};
use crate::dataplane::Snapshot;
use crate::serve::history::ChangeHistory;
use crate::serve::status::{AgentStatus, Time};

/// The number of entries of a history that comes with objects of a Service or an address.
const LATEST: usize = 3;

/// The Services that a reader needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selection {
    /// None, only the state of the agent.
    #[default]
    Nothing,
    /// All Services.
    All,
    /// The Services with a frontend, or an address without one, at this destination.
    Address {
        /// The destination address.
        address: IpAddr,
        /// The destination port, which may be a node port.
        port: u16,
    },
    /// The Service of this name, and those that may claim one of its frontends.
    Service(ObjectName),
}

/// Returns all addresses of a Service, also those without a frontend.
fn addresses(service: &Service) -> impl Iterator<Item = &IpAddr> {
    let Service { cluster_ips, external_ips, load_balancer_ips, proxied_ips, .. } = service;
    [cluster_ips, external_ips, load_balancer_ips, proxied_ips].into_iter().flatten()
}

fn has_address(service: &Service, address: IpAddr) -> bool {
    addresses(service).any(|own| *own == address)
}

fn has_node_port(service: &Service, port: u16) -> bool {
    service.ports.iter().any(|own| own.node_port == Some(port))
}

fn may_conflict(one: &Service, other: &Service) -> bool {
    let node_ports = one.ports.iter().filter_map(|port| port.node_port);
    addresses(one).any(|address| has_address(other, *address))
        || node_ports.into_iter().any(|port| has_node_port(other, port))
}

impl Objects {
    /// Returns the selected part of a snapshot's objects, with their history.
    #[must_use]
    pub fn of(
        snapshot: &Snapshot,
        status: AgentStatus,
        history: &ChangeHistory,
        Question { selection, whole_history }: &Question,
    ) -> Objects {
        let Snapshot { store, revision, .. } = snapshot;
        let named = match selection {
            Selection::Service(name) => store.service(name),
            _ => None,
        };
        let wanted = |name: &ObjectName, service: Option<&Service>| match selection {
            Selection::Nothing => false,
            Selection::All => true,
            Selection::Address { address, port } => service.is_some_and(|service| {
                has_address(service, *address) || has_node_port(service, *port)
            }),
            Selection::Service(wanted) => {
                let both = named.zip(service);
                name == wanted || both.is_some_and(|(one, other)| may_conflict(one, other))
            }
        };
        let is_all = *selection == Selection::All;
        let (since, mut entries) = match is_all && !whole_history {
            true => (Time::default(), Vec::new()),
            false => history.of(store, is_all, wanted),
        };
        if !whole_history {
            entries.drain(..entries.len().saturating_sub(LATEST));
        }
        Objects {
            status,
            options: snapshot.options(),
            revision: *revision,
            changes: store.excerpt(wanted),
            since,
            history: entries,
        }
    }
}
