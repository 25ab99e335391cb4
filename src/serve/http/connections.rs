//! The pool of the connections of all servers.
//!
//! A new connection is never refused and never waits. If there are too many, the source address
//! with the most connections loses the least recently used one. So every client gets its answer,
//! whatever other clients do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::oneshot;

/// The limits of clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The timeout for the headers of a request.
    pub request: Duration,
    /// The maximum time of a connection with all its requests.
    pub connection: Duration,
    /// The maximum number of connections of all servers.
    pub connections: usize,
    /// The maximum number of connections from one source.
    pub per_source: usize,
    /// The maximum size of all answers that clients have not read, in bytes.
    pub unread: usize,
}

impl Default for Limits {
    /// Leaves three quarters of the process's file descriptors for other uses.
    fn default() -> Limits {
        /// The part of the file descriptors for connections.
        const SHARE: u64 = 4;
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let connections = usize::try_from(files / SHARE).unwrap_or(usize::MAX).clamp(16, 512);
        Limits {
            request: Duration::from_secs(5),
            connection: Duration::from_secs(60),
            connections,
            per_source: (connections / 4).max(8),
            unread: 8 << 20,
        }
    }
}

/// The pool. Clones share it.
#[derive(Debug, Clone)]
pub struct Connections {
    limits: Limits,
    pool: Arc<Mutex<Pool>>,
}

impl Default for Connections {
    fn default() -> Connections {
        Connections::new(Limits::default())
    }
}

/// The minimum time between two log lines about closed connections.
const LOG_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Pool {
    /// By the value of the clock at their creation.
    connections: BTreeMap<u64, Connection>,
    /// A logical clock: each use of a connection advances it.
    clock: u64,
    logged: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    last_use: u64,
    source: IpAddr,
    /// The size of answers that the client has not read.
    unread: usize,
    /// Its drop tells the task that the pool has closed the connection.
    _open: oneshot::Sender<Infallible>,
}

/// A connection's slot in the pool, which dropping frees.
#[derive(Debug)]
pub(super) struct Slot {
    connections: Connections,
    id: u64,
}

impl Connections {
    /// Makes an empty pool.
    #[must_use]
    pub fn new(limits: Limits) -> Connections {
        Connections { limits, pool: Arc::default() }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a slot for a new connection. Closes another connection if there are too many.
    /// The receiver ends when the pool closes this one.
    pub(super) fn enter(&self, from: IpAddr) -> (Arc<Slot>, oneshot::Receiver<Infallible>) {
        let source = aggregated(from);
        let mut pool = self.lock();
        if pool.connections.values().filter(|c| c.source == source).count()
            >= self.limits.per_source
        {
            pool.close_first(|_, connection| connection.source == source);
        } else if pool.connections.len() >= self.limits.connections {
            pool.close_one();
        }
        let id = pool.tick();
        let (_open, closed) = oneshot::channel();
        pool.connections.insert(id, Connection { last_use: id, source, unread: 0, _open });
        (Arc::new(Slot { connections: self.clone(), id }), closed)
    }

    /// Closes a connection to free its file descriptor. Returns false if there is none.
    pub(super) fn make_room(&self) -> bool {
        self.lock().close_one()
    }
}

/// Returns the source of an address: an IPv4 address, or an IPv6 /64, which one host may own.
fn aggregated(address: IpAddr) -> IpAddr {
    const NETWORK: u128 = !0 << 64;
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & NETWORK).into()),
        v4 => v4,
    }
}

impl Pool {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Closes the least recently used connection of the source with the most.
    fn close_one(&mut self) -> bool {
        let largest = self.largest(|_| 1);
        self.close_first(|_, connection| Some(connection.source) == largest)
    }

    /// Returns the source with the largest sum.
    fn largest(&self, of: impl Fn(&Connection) -> usize) -> Option<IpAddr> {
        let mut sums = BTreeMap::new();
        for connection in self.connections.values() {
            *sums.entry(connection.source).or_insert(0) += of(connection);
        }
        sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(source, _)| source)
    }

    /// Closes the least recently used of these connections. Returns false if there is none.
    fn close_first(&mut self, of: impl Fn(u64, &Connection) -> bool) -> bool {
        let connections = self.connections.len();
        let some = self.connections.iter().filter(|(id, connection)| of(**id, connection));
        let first = some.min_by_key(|(_, connection)| connection.last_use).map(|(id, _)| *id);
        let closed = first.and_then(|id| self.connections.remove(&id));
        let Some(Connection { source, .. }) = closed else { return false };
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_PERIOD) {
            self.logged = Some(Instant::now());
            tracing::warn!(
                client = %source, connections,
                "too many connections to the health and metrics ports, closed the least recently used \
                 one of the client with the most"
            );
        }
        true
    }

    fn unread(&self) -> usize {
        self.connections.values().map(|connection| connection.unread).sum()
    }
}

impl Slot {
    /// Marks the connection as just used.
    pub(super) fn used(&self) {
        let mut pool = self.connections.lock();
        let now = pool.tick();
        if let Some(connection) = pool.connections.get_mut(&self.id) {
            connection.last_use = now;
        }
    }

    /// Returns the body of an answer, which counts as unread until it is written. If there are too
    /// many unread bytes, closes the least recently used connection of the source with the most.
    pub(super) fn answer(self: &Arc<Slot>, body: Bytes) -> Bytes {
        let mut pool = self.connections.lock();
        if let Some(connection) = pool.connections.get_mut(&self.id) {
            connection.unread += body.len();
        }
        while pool.unread() > self.connections.limits.unread {
            let most = pool.largest(|connection| connection.unread);
            if !pool.close_first(|id, c| Some(c.source) == most && c.unread > 0 && id != self.id) {
                break;
            }
        }
        Bytes::from_owner(Unread { body, slot: self.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connections.lock().connections.remove(&self.id);
    }
}

/// The body of an unwritten answer.
struct Unread {
    body: Bytes,
    slot: Arc<Slot>,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let mut pool = self.slot.connections.lock();
        if let Some(connection) = pool.connections.get_mut(&self.slot.id) {
            connection.unread -= self.body.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn connections(count: usize, per_source: usize, unread: usize) -> Connections {
        let limits = Limits { connections: count, per_source, unread, ..Limits::default() };
        Connections::new(limits)
    }

    fn from(host: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, host])
    }

    type Entered = (Arc<Slot>, oneshot::Receiver<Infallible>);

    fn open(slots: &mut [Entered]) -> Vec<bool> {
        let is_open = |(_, closed): &mut Entered| closed.try_recv() == Err(TryRecvError::Empty);
        slots.iter_mut().map(is_open).collect()
    }

    #[test]
    fn the_least_recently_used_connection_of_a_source_is_closed_first() {
        let pool = connections(10, 3, 1000);
        let mut slots: Vec<Entered> = (0..3).map(|_| pool.enter(from(1))).collect();
        slots.push(pool.enter(from(2)));
        slots[0].0.used();
        slots.push(pool.enter(from(1)));
        assert_eq!(open(&mut slots), [true, false, true, true, true]);
        drop(slots);
        assert!(pool.lock().connections.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_mapped_ipv4_is_ipv4() {
        let of = |address: &str| aggregated(address.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), from(1));
    }
}
