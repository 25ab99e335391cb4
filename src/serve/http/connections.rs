//! The pool of the connections of all servers.
//!
//! A new connection is never refused and never waits. If connections or their unread answers are too
//! much, the source address with the most of both loses the least recently used connection. So every
//! client gets its answer, whatever other clients do.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::oneshot;

/// The minimum time between two log lines about closed connections.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// The memory of a connection without an answer, in bytes.
const CONNECTION: usize = 16 << 10;
/// The maximum size of all answers that clients have not read, in bytes.
const UNREAD: usize = 8 << 20;

/// The pool. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    most: usize,
    pool: Arc<Mutex<Pool>>,
}

impl Default for Connections {
    /// Leaves three quarters of the process's file descriptors for other uses.
    fn default() -> Connections {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        Connections::new(usize::try_from(files / 4).unwrap_or(usize::MAX).clamp(16, 512))
    }
}

#[derive(Debug, Default)]
struct Pool {
    /// The least recently used one first.
    connections: VecDeque<Connection>,
    last_id: u64,
    logged: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    source: IpAddr,
    /// The memory that it takes.
    size: usize,
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
    /// Makes an empty pool for so many connections.
    pub(super) fn new(most: usize) -> Connections {
        Connections { most, pool: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a slot for a new connection. Closes another connection if there are too many.
    /// The receiver ends when the pool closes this one.
    pub(super) fn enter(&self, from: IpAddr) -> (Arc<Slot>, oneshot::Receiver<Infallible>) {
        let mut pool = self.lock();
        if pool.connections.len() >= self.most {
            pool.close_one(None);
        }
        pool.last_id += 1;
        let (id, source, (_open, closed)) = (pool.last_id, aggregated(from), oneshot::channel());
        pool.connections.push_back(Connection { id, source, size: CONNECTION, _open });
        (Arc::new(Slot { connections: self.clone(), id }), closed)
    }

    /// Closes a connection to free its file descriptor. Returns false if there is none.
    pub(super) fn make_room(&self) -> bool {
        self.lock().close_one(None)
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
    /// Returns the size of a connection, unless it is closed.
    fn size(&mut self, id: u64) -> Option<&mut usize> {
        let found = self.connections.iter_mut().find(|connection| connection.id == id);
        found.map(|connection| &mut connection.size)
    }

    fn remove(&mut self, id: u64) -> Option<Connection> {
        let at = self.connections.iter().position(|connection| connection.id == id)?;
        self.connections.remove(at)
    }

    /// Closes the least recently used connection of the source that takes the most, unless it is
    /// `kept`. Returns false if there is none.
    fn close_one(&mut self, kept: Option<u64>) -> bool {
        let mut sizes = HashMap::new();
        for Connection { source, size, .. } in &self.connections {
            *sizes.entry(*source).or_insert(0) += size;
        }
        let largest = sizes.into_iter().max_by_key(|(_, size)| *size).map(|(source, _)| source);
        let is_first = |it: &Connection| Some(it.source) == largest && Some(it.id) != kept;
        let connections = self.connections.len();
        let first = self.connections.iter().position(is_first);
        let closed = first.and_then(|first| self.connections.remove(first));
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
}

impl Slot {
    /// Marks the connection as just used.
    pub(super) fn used(&self) {
        let mut pool = self.connections.lock();
        if let Some(connection) = pool.remove(self.id) {
            pool.connections.push_back(connection);
        }
    }

    /// Returns the body of an answer, which counts as unread until it is written. Closes other
    /// connections if there is too much of it.
    pub(super) fn answer(self: &Arc<Slot>, body: Bytes) -> Bytes {
        let mut pool = self.connections.lock();
        if let Some(size) = pool.size(self.id) {
            *size += body.len();
        }
        let most = self.connections.most * CONNECTION + UNREAD;
        while pool.connections.iter().map(|connection| connection.size).sum::<usize>() > most
            && pool.close_one(Some(self.id))
        {}
        Bytes::from_owner(Unread { body, slot: self.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connections.lock().remove(self.id);
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
        if let Some(size) = pool.size(self.slot.id) {
            *size -= self.body.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn from(host: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, host])
    }

    type Entered = (Arc<Slot>, oneshot::Receiver<Infallible>);

    fn open(slots: &mut [Entered]) -> Vec<bool> {
        let is_open = |(_, closed): &mut Entered| closed.try_recv() == Err(TryRecvError::Empty);
        slots.iter_mut().map(is_open).collect()
    }

    #[test]
    fn the_least_recently_used_connection_of_the_largest_source_is_closed_first() {
        let pool = Connections::new(4);
        let mut slots = vec![pool.enter(from(2))];
        slots.extend((0..3).map(|_| pool.enter(from(1))));
        slots[1].0.used();
        slots.push(pool.enter(from(3)));
        assert_eq!(open(&mut slots), [true, true, false, true, true]);
        drop(slots);
        assert!(pool.lock().connections.is_empty());
    }

    #[test]
    fn the_source_with_the_most_unread_bytes_loses_connections() {
        let pool = Connections::new(4);
        let mut slots: Vec<Entered> = [2, 2, 1, 1].map(|host| pool.enter(from(host))).into();
        let answer = |slot: &Entered| slot.0.answer(vec![0; UNREAD / 2].into());
        drop(answer(&slots[0]));
        let _unread = [answer(&slots[2]), answer(&slots[3]), answer(&slots[0])];
        assert_eq!(open(&mut slots), [true, true, false, true]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_mapped_ipv4_is_ipv4() {
        let of = |address: &str| aggregated(address.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), from(1));
    }
}
