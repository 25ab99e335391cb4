//! The ports that the agent cannot bind.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use shunt_core::model::ObjectName;

use super::metrics::{Counted, Gauge, Metrics};

/// Called once for each port of a Service that the agent cannot bind.
pub type Report = Arc<dyn Fn(&ObjectName, SocketAddr, &io::Error) + Send + Sync>;

/// A port of a Service that the agent cannot bind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnboundPort {
    /// The Service, as `namespace/name`.
    pub service: String,
    /// Address and port.
    pub address: String,
    /// The error of the kernel.
    pub reason: String,
}

/// A port for probes or metrics that the agent cannot bind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnboundServer {
    /// The paths of the server.
    pub purpose: String,
    /// The configuration field of the address.
    pub field: String,
    /// Address and port.
    pub address: String,
    /// The error of the kernel.
    pub reason: String,
}

impl UnboundPort {
    pub(super) fn new(service: &ObjectName, address: SocketAddr, error: &io::Error) -> UnboundPort {
        let (service, address) = (service.to_string(), address.to_string());
        UnboundPort { service, address, reason: error.to_string() }
    }
}

type Ports<T> = BTreeMap<(SocketAddr, Gauge), T>;

/// The ports that cannot be bound, which gauges count. Clones share them.
#[derive(Clone)]
pub struct UnboundPorts<T> {
    metrics: Metrics,
    ports: Arc<Mutex<Ports<T>>>,
}

/// A listed port. Dropping this removes it from the list.
pub(super) struct Unbound<T: Clone> {
    all: UnboundPorts<T>,
    key: (SocketAddr, Gauge),
    _counted: Counted,
}

impl<T: Clone> UnboundPorts<T> {
    /// Makes an empty list.
    #[must_use]
    pub fn new(metrics: Metrics) -> UnboundPorts<T> {
        UnboundPorts { metrics, ports: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Ports<T>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port to the list and to this gauge.
    pub(super) fn add(&self, address: SocketAddr, gauge: Gauge, port: T) -> Unbound<T> {
        let key = (address, gauge);
        self.lock().insert(key, port);
        Unbound { all: self.clone(), key, _counted: self.metrics.count(gauge) }
    }

    /// Returns all of them, ordered by address.
    #[must_use]
    pub fn list(&self) -> Vec<T> {
        self.lock().values().cloned().collect()
    }
}

impl<T: Clone> Drop for Unbound<T> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.key);
    }
}
