//! The ports that the agent cannot bind.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use shunt_core::model::ObjectName;

use super::events::{Notice, Recorder, Scope};
use super::metrics::{Counted, Gauge, Metrics};

/// What listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Server {
    /// `/healthz` and `/livez`.
    Health,
    /// `/metrics`.
    Metrics,
    /// A `healthCheckNodePort`.
    ServiceHealth,
    /// A node port on a loopback address.
    NodePort,
}

/// What messages, metrics and Events say of a server.
pub(super) struct ServerRow {
    pub(super) purpose: &'static str,
    /// The field with the port, of the configuration or of a Service.
    field: &'static str,
    /// Counts the port while it cannot be bound.
    gauge: Gauge,
    /// Reason and action of the Event, which are kube-proxy's where it has one.
    event: (&'static str, &'static str),
}

impl Server {
    pub(super) const fn row(self) -> ServerRow {
        let (purpose, field, gauge, event): (_, _, Gauge, _) = match self {
            Server::Health => (
                "/healthz and /livez",
                "healthzBindAddress",
                ("shunt_unbound_ports", &[("server", "health")]),
                ("FailedToStartProxierHealthcheck", "StartKubeProxy"),
            ),
            Server::Metrics => (
                "metrics",
                "metricsBindAddress",
                ("shunt_unbound_ports", &[("server", "metrics")]),
                ("FailedToStartMetricServer", "StartKubeProxy"),
            ),
            Server::ServiceHealth => (
                "the health checks",
                "spec.healthCheckNodePort",
                ("shunt_unbound_ports", &[("server", "service-health")]),
                ("FailedToStartServiceHealthcheck", "Listen"),
            ),
            Server::NodePort => (
                "the node port",
                "spec.ports.nodePort",
                ("shunt_loopback_node_ports", &[("state", "failed")]),
                ("FailedToListenOnLoopback", "Listen"),
            ),
        };
        ServerRow { purpose, field, gauge, event }
    }
}

/// A port that the agent cannot bind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnboundPort {
    /// The purpose of the server.
    pub purpose: String,
    /// The field of the configuration or of the Service.
    pub field: String,
    /// The Service, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Address and port.
    pub address: String,
    /// The error of the kernel.
    pub reason: String,
}

impl UnboundPort {
    /// Describes the port.
    pub(super) fn new(
        server: Server,
        service: Option<&ObjectName>,
        address: SocketAddr,
        error: &io::Error,
    ) -> UnboundPort {
        let ServerRow { purpose, field, .. } = server.row();
        UnboundPort {
            purpose: purpose.to_owned(),
            field: field.to_owned(),
            service: service.map(ToString::to_string),
            address: address.to_string(),
            reason: error.to_string(),
        }
    }
}

impl Display for UnboundPort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let UnboundPort { purpose, field, service, address, reason } = self;
        write!(f, "cannot listen on {address} for {purpose} ")?;
        match service {
            Some(service) => write!(f, "of Service {service}")?,
            None => write!(f, "({field})")?,
        }
        write!(f, ": {reason}; if another process holds the port, it answers there")
    }
}

/// The ports that cannot be bound, with a log line and an Event for each, which gauges count. Clones
/// share them.
#[derive(Clone)]
pub struct UnboundPorts {
    metrics: Metrics,
    events: Recorder,
    ports: Arc<Mutex<BTreeMap<(Server, SocketAddr), UnboundPort>>>,
}

/// A listed port. Dropping this removes it from the list.
pub(super) struct Unbound {
    all: UnboundPorts,
    key: (Server, SocketAddr),
    _counted: Counted,
}

impl UnboundPorts {
    /// Makes an empty list.
    #[must_use]
    pub fn new(metrics: Metrics, events: Recorder) -> UnboundPorts {
        UnboundPorts { metrics, events, ports: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Server, SocketAddr), UnboundPort>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port to the list, and reports it.
    pub(super) fn add(
        &self,
        server: Server,
        service: Option<&ObjectName>,
        address: SocketAddr,
        error: &io::Error,
    ) -> Unbound {
        let port = UnboundPort::new(server, service, address, error);
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "give the agent the capability NET_BIND_SERVICE, or choose a port of 1024 or above"
            }
            io::ErrorKind::AddrNotAvailable => "add the address to an interface",
            _ => "free the port, or choose another one",
        };
        tracing::error!(
            object = service.map(|service| format!("Service {service}")),
            field = port.field,
            "{port}; {remedy}; retrying"
        );
        let (ServerRow { event: (reason, action), gauge, .. }, note) =
            (server.row(), port.to_string());
        self.events.record(match service {
            Some(service) => Notice::of_service(service, Scope::Node, reason, action, note),
            None => Notice::of_node(reason, action, note),
        });
        let key = (server, address);
        self.lock().insert(key, port);
        Unbound { all: self.clone(), key, _counted: self.metrics.count(gauge) }
    }

    /// Returns those of these servers, ordered by address.
    #[must_use]
    pub fn of(&self, servers: &[Server]) -> Vec<UnboundPort> {
        let ports = self.lock();
        let wanted = ports.iter().filter(|((server, _), _)| servers.contains(server));
        wanted.map(|(_, port)| port.clone()).collect()
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        self.all.lock().remove(&self.key);
    }
}
