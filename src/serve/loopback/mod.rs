//! Node ports on the node's loopback addresses: a TCP proxy.
//!
//! The kernel routes no packet from a loopback address to another host, so no rule of nftables can
//! send a connection to 127.0.0.1 to an endpoint. This proxy accepts such connections, connects to an
//! endpoint that the plan permits, and copies in both directions.
//!
//! Owns: the listeners, the connections, and a thread with its own runtime, so that no traffic
//! delays the dataplane or the watches. Without a node port to serve there is no thread and no
//! socket.
//!
//! Must not know: nf_tables, Kubernetes, the configuration. It gets [`LoopbackChanges`] after each
//! sync.

mod balancer;
mod connection;
mod shared;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use shunt_core::model::Family;
use shunt_core::plan::LoopbackChanges;

use crate::serve::metrics::Metrics;
use crate::serve::unbound_ports::Report;

pub use shared::LoopbackReport;
use shared::{Shared, lock};

/// The proxy. It belongs to the observer of the dataplane, which never waits for it.
pub struct Proxy {
    shared: Arc<Shared>,
    families: Vec<Family>,
    /// Changes for a thread that could not be started.
    pending: LoopbackChanges,
}

impl Proxy {
    /// Makes a proxy for a node with these families. It starts nothing yet.
    #[must_use]
    pub fn new(families: &[Family], metrics: Metrics, report: Report) -> Proxy {
        Proxy {
            shared: Arc::new(Shared::new(metrics, report)),
            families: families.to_vec(),
            pending: BTreeMap::new(),
        }
    }

    /// Returns a function that reports about the proxy, for readers in other threads.
    pub fn reporter(&self) -> impl Fn() -> LoopbackReport + Send + use<> {
        let shared = self.shared.clone();
        move || shared.report()
    }

    /// Passes the changes of a sync to the thread. The first port starts it; it ends itself after the
    /// last port and the last connection.
    ///
    /// # Errors
    /// If the system refuses to start a thread. The next call tries again.
    pub fn update(&mut self, changes: LoopbackChanges) -> io::Result<()> {
        let of_node = |(family, _): &(Family, u16)| self.families.contains(family);
        self.pending.extend(changes.into_iter().filter(|(port, _)| of_node(port)));
        // The thread takes this lock only to end, so that it misses no change.
        let mut link = lock(&self.shared.link);
        if link.is_none() && self.pending.values().all(Option::is_none) {
            self.pending.clear();
            return Ok(());
        }
        if link.is_none() {
            *link = Some(worker::start(self.shared.clone())?);
        }
        if let Some(sender) = link.as_ref().filter(|_| !self.pending.is_empty()) {
            // The receiver lives as long as the sender is in the link.
            let _ = sender.send(std::mem::take(&mut self.pending));
        }
        Ok(())
    }
}
