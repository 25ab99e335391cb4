//! The ports that the agent cannot bind.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use shunt_core::model::ObjectName;

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

/// The addresses that cannot be bound. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct UnboundPorts(Arc<Mutex<BTreeMap<SocketAddr, (ObjectName, String)>>>);

impl UnboundPorts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, (ObjectName, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns each address with its Service and the error.
    #[must_use]
    pub fn list(&self) -> Vec<UnboundPort> {
        let port = |(address, (service, reason)): (&SocketAddr, &(ObjectName, String))| {
            let (service, address) = (service.to_string(), address.to_string());
            UnboundPort { service, address, reason: reason.clone() }
        };
        self.lock().iter().map(port).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Adds an address. Returns true unless it was there for the same Service.
    pub(super) fn add(&self, address: SocketAddr, service: &ObjectName, error: &io::Error) -> bool {
        let before = self.lock().insert(address, (service.clone(), error.to_string()));
        before.is_none_or(|(before, _)| before != *service)
    }

    /// Removes an address. Returns true if it was there.
    pub(super) fn remove(&self, address: SocketAddr) -> bool {
        self.lock().remove(&address).is_some()
    }
}
