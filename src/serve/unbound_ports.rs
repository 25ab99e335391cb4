//! The ports that the agent cannot bind.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use shunt_core::model::ObjectName;

use super::events::{EventScope, Notice, Recorder};
use super::lock;
use super::metrics::{Counted, Gauge, Metrics};

/// What listens on a port, as messages, metrics and Events call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    pub(super) purpose: &'static str,
    /// The field with the port, of the configuration or of a Service.
    field: &'static str,
    /// Counts the port while it cannot be bound.
    gauge: Gauge,
    /// Reason and action of the Event, which are kube-proxy's where it has one.
    event: (&'static str, &'static str),
}

impl Server {
    /// The field of a node port.
    pub(super) const NODE_PORT_FIELD: &str = "spec.ports.nodePort";
    /// `/healthz` and `/livez`.
    pub const HEALTH: Server = Server {
        purpose: "/healthz and /livez",
        field: "healthzBindAddress",
        gauge: ("shunt_unbound_ports", &[("server", "health")]),
        event: ("FailedToStartProxierHealthcheck", "StartKubeProxy"),
    };
    /// `/metrics`.
    pub const METRICS: Server = Server {
        purpose: "metrics",
        field: "metricsBindAddress",
        gauge: ("shunt_unbound_ports", &[("server", "metrics")]),
        event: ("FailedToStartMetricServer", "StartKubeProxy"),
    };
    /// A `healthCheckNodePort`.
    pub const SERVICE_HEALTH: Server = Server {
        purpose: "the health checks",
        field: "spec.healthCheckNodePort",
        gauge: ("shunt_unbound_ports", &[("server", "service-health")]),
        event: ("FailedToStartServiceHealthcheck", "Listen"),
    };
    /// A node port on a loopback address.
    pub const NODE_PORT: Server = Server {
        purpose: "the node port",
        field: Server::NODE_PORT_FIELD,
        gauge: ("shunt_loopback_node_ports", &[("state", "failed")]),
        event: ("FailedToListenOnLoopback", "Listen"),
    };
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
        UnboundPort {
            purpose: server.purpose.to_owned(),
            field: server.field.to_owned(),
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
        let ((reason, action), note) = (server.event, port.to_string());
        self.events.record(match service {
            Some(service) => Notice::of_service(service, EventScope::Node, reason, action, note),
            None => Notice::of_node(reason, action, note),
        });
        let key = (server, address);
        lock(&self.ports).insert(key, port);
        Unbound { all: self.clone(), key, _counted: self.metrics.count(server.gauge) }
    }

    /// Returns all, ordered by server and address.
    #[must_use]
    pub fn all(&self) -> Vec<UnboundPort> {
        lock(&self.ports).values().cloned().collect()
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        lock(&self.all.ports).remove(&self.key);
    }
}
