//! Node ports on the node's loopback addresses: a TCP proxy.
//!
//! The kernel routes no packet from a loopback address to another host, so no rule of nftables can
//! send a connection to 127.0.0.1 to an endpoint. This proxy accepts such connections, connects to an
//! endpoint that the plan permits, and copies in both directions.
//!
//! Owns: the listeners and the connections, one task for each. Without a node port to serve there is no
//! socket.
//!
//! Must not know: nf_tables, Kubernetes, the configuration. It gets [`LoopbackChanges`] after each
//! sync.

mod balancer;
mod connection;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use shunt_core::model::Family;
use shunt_core::plan::{LoopbackChanges, loopback_address};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use self::balancer::Balancer;
use self::connection::{reset, serve};
use crate::serve::listener::{Happened, PortListener};
use crate::serve::lock;
use crate::serve::metrics::{Counted, Gauge, Metrics};
use crate::serve::time::Seldom;
use crate::serve::unbound_ports::{Server, UnboundPorts};

/// The maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 16_384;
/// The number of file descriptors of a connection: two sockets.
const FILES_PER_CONNECTION: u64 = 2;
/// How long a connection may stay open without data after one side has ended its stream. Connection
/// tracking has the same timeout, so a connection without a proxy would not last longer.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(120);

const OPEN: Gauge = ("shunt_loopback_connections_open", &[]);
const LISTENING: Gauge = ("shunt_loopback_node_ports", &[("state", "listening")]);

/// A node port with its endpoints, which change while connections are open.
type Port = Mutex<Balancer>;

/// The proxy.
pub struct Proxy {
    metrics: Metrics,
    /// [`HALF_CLOSED_TIMEOUT`], except in tests.
    half_closed_timeout: Duration,
    max_connections: usize,
    unbound: UnboundPorts,
    /// About connections that are too many.
    log: Seldom,
}

impl Proxy {
    /// Makes a proxy. It starts nothing yet.
    #[must_use]
    pub fn new(metrics: Metrics, unbound: UnboundPorts) -> Proxy {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        // A quarter of the file descriptors is for listeners and the rest of the agent.
        let most = usize::try_from(files * 3 / 4 / FILES_PER_CONNECTION).unwrap_or(usize::MAX);
        Proxy {
            unbound,
            metrics,
            half_closed_timeout: HALF_CLOSED_TIMEOUT,
            max_connections: most.clamp(1, MAX_CONNECTIONS),
            log: Seldom::default(),
        }
    }

    /// Serves the ports of a node with these families, as the changes of each sync say, until their
    /// sender is dropped.
    pub async fn serve(
        self: Arc<Proxy>,
        families: Vec<Family>,
        mut changes: UnboundedReceiver<LoopbackChanges>,
    ) {
        let mut ports: BTreeMap<SocketAddr, (Arc<Port>, JoinHandle<()>)> = BTreeMap::new();
        while let Some(changes) = changes.recv().await {
            let of_node = changes.into_iter().filter(|((family, _), _)| families.contains(family));
            for ((family, number), new) in of_node {
                let address = SocketAddr::new(loopback_address(family), number);
                if let (Some((port, _)), Some(new)) = (ports.get(&address), &new)
                    && lock(port).update(new)
                {
                    continue;
                }
                if let Some((_, task)) = ports.remove(&address) {
                    task.abort();
                    // The listener is closed when the task has ended. Another process, or the next
                    // listener, may bind the address then.
                    let _ = task.await;
                }
                if let Some(new) = new {
                    let port = Arc::new(Port::new(Balancer::new(new)));
                    let task = tokio::spawn(self.clone().listen(address, port.clone()));
                    ports.insert(address, (port, task));
                }
            }
        }
    }

    /// Accepts connections for ever, once the address can be bound.
    async fn listen(self: Arc<Proxy>, address: SocketAddr, port: Arc<Port>) {
        let mut listener = PortListener::new(address, true);
        let (mut unbound, mut _listening) = (None, None);
        loop {
            match listener.next().await {
                Happened::Bound => {
                    if unbound.take().is_some() {
                        tracing::info!(
                            %address, "listening for the node port on loopback, the port is free"
                        );
                    }
                    _listening = Some(self.metrics.count(LISTENING));
                }
                Happened::Unbound(error) => {
                    let service = lock(&port).service().clone();
                    let port = self.unbound.add(Server::NODE_PORT, Some(&service), address, &error);
                    (unbound, _listening) = (Some(port), None);
                }
                Happened::Accepted(client) => match self.enter() {
                    Some(slot) => {
                        tokio::spawn(serve(client, port.clone(), self.clone(), slot));
                    }
                    None => reset(&client),
                },
            }
        }
    }

    /// Returns a slot for a new connection; `None` if there are too many.
    fn enter(&self) -> Option<Counted> {
        let slot = self.metrics.count(OPEN);
        if self.metrics.counted(OPEN) <= self.max_connections {
            return Some(slot);
        }
        self.ended("too-many");
        if self.log.may() {
            tracing::warn!(
                maximum = self.max_connections,
                "too many connections to node ports on loopback addresses, new ones are reset; \
                 clients can use an address of the node, where no proxy is involved"
            );
        }
        None
    }

    /// Counts a connection by its outcome.
    fn ended(&self, result: &'static str) {
        self.metrics.add("shunt_loopback_connections_total", &[("result", result)], 1.0);
    }

    /// Returns a report about the proxy.
    #[must_use]
    pub fn report(&self) -> LoopbackReport {
        LoopbackReport {
            listening: self.metrics.counted(LISTENING),
            connections: self.metrics.counted(OPEN),
            max_connections: self.max_connections,
        }
    }
}

/// A report about the proxy. Field names of the JSON are an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoopbackReport {
    /// The number of node ports on which the proxy listens; each family counts.
    pub listening: usize,
    /// The number of open connections.
    pub connections: usize,
    /// The maximum number of open connections.
    pub max_connections: usize,
}
