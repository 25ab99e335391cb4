//! The state that the proxy's thread shares with readers.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use shunt_core::model::ObjectName;
use shunt_core::plan::LoopbackChanges;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::balancer::Balancer;
use crate::serve::metrics::Metrics;
use crate::serve::unbound_ports::{Report, UnboundPort, UnboundPorts};

/// The maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 16_384;
/// The number of file descriptors of a connection: two sockets.
const FILES_PER_CONNECTION: u64 = 2;
/// How long a connection may stay open without data after one side has ended its stream. Connection
/// tracking has the same timeout, so a connection without a proxy would not last longer.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(120);
/// The minimum time between two log lines of a kind.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// What the thread shares.
pub(super) struct Shared {
    /// The way to the thread; `None` without a thread.
    pub(super) link: Mutex<Option<UnboundedSender<LoopbackChanges>>>,
    pub(super) metrics: Metrics,
    /// Wakes the thread when the last connection has ended.
    pub(super) idle: Notify,
    /// [`HALF_CLOSED_TIMEOUT`], except in tests.
    pub(super) half_closed_timeout: Duration,
    on_unbound: Report,
    max_connections: usize,
    open: AtomicUsize,
    listening: Mutex<BTreeSet<SocketAddr>>,
    unbound: UnboundPorts,
    logged: Mutex<[Option<Instant>; 2]>,
}

/// The kinds of log lines that repeat at most once per [`LOG_PERIOD`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Complaint {
    TooManyConnections,
    CannotAccept,
}

/// A node port with its endpoints, which change while connections are open.
pub(super) type Port = Mutex<Balancer>;

pub(super) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each value is consistent by itself.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(metrics: Metrics, on_unbound: Report) -> Shared {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        // A quarter of the file descriptors is for listeners and the rest of the agent.
        let most = usize::try_from(files * 3 / 4 / FILES_PER_CONNECTION).unwrap_or(usize::MAX);
        Shared {
            link: Mutex::new(None),
            metrics,
            idle: Notify::new(),
            half_closed_timeout: HALF_CLOSED_TIMEOUT,
            on_unbound,
            max_connections: most.clamp(1, MAX_CONNECTIONS),
            open: AtomicUsize::new(0),
            listening: Mutex::default(),
            unbound: UnboundPorts::default(),
            logged: Mutex::default(),
        }
    }

    /// Returns the number of open connections.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns a slot for a new connection; `None` if there are too many.
    pub(super) fn enter(self: &Arc<Shared>) -> Option<Slot> {
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        // Before the check, so that its drop reverts the addition.
        let slot = Slot(self.clone());
        if open < self.max_connections {
            self.metrics.set("shunt_loopback_connections_open", &[], (open + 1) as f64);
            return Some(slot);
        }
        slot.end("too-many");
        if self.may_log(Complaint::TooManyConnections) {
            tracing::warn!(
                maximum = self.max_connections,
                "too many connections to node ports on loopback addresses, new ones are reset; \
                 clients can use an address of the node, where no proxy is involved"
            );
        }
        None
    }

    /// Returns true if a line of that kind has not been logged for a while.
    pub(super) fn may_log(&self, complaint: Complaint) -> bool {
        let mut logged = lock(&self.logged);
        let last = &mut logged[complaint as usize];
        let may = last.is_none_or(|last| last.elapsed() >= LOG_PERIOD);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Notes a listener, and that its address can be bound again.
    pub(super) fn bound(&self, address: SocketAddr) {
        lock(&self.listening).insert(address);
        if self.unbound.remove(address) {
            tracing::info!(%address, "listening for the node port on loopback, the port is free");
        }
        self.count();
    }

    /// Notes that an address cannot be bound, and reports it the first time.
    pub(super) fn unbound(&self, address: SocketAddr, service: &ObjectName, error: &io::Error) {
        if self.unbound.add(address, service, error) {
            (self.on_unbound)(service, address, error);
        }
        self.count();
    }

    /// Forgets an address that the proxy must not serve any more.
    pub(super) fn forget(&self, address: SocketAddr) {
        lock(&self.listening).remove(&address);
        self.unbound.remove(address);
        self.count();
    }

    fn count(&self) {
        let listening = lock(&self.listening).len();
        for (state, count) in [("listening", listening), ("failed", self.unbound.len())] {
            self.metrics.set("shunt_loopback_node_ports", &[("state", state)], count as f64);
        }
    }

    /// Returns a report about the proxy.
    pub(super) fn report(&self) -> LoopbackReport {
        LoopbackReport {
            listening: lock(&self.listening).len(),
            connections: self.open(),
            max_connections: self.max_connections,
            unbound: self.unbound.list(),
        }
    }
}

/// The slot of an open connection, which dropping frees.
pub(super) struct Slot(Arc<Shared>);

impl Slot {
    /// Counts the outcome.
    pub(super) fn end(&self, result: &'static str) {
        self.0.metrics.add("shunt_loopback_connections_total", &[("result", result)], 1.0);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let open = self.0.open.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
        self.0.metrics.set("shunt_loopback_connections_open", &[], open as f64);
        if open == 0 {
            self.0.idle.notify_one();
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
    /// The node ports on which the proxy cannot listen.
    pub unbound: Vec<UnboundPort>,
}
