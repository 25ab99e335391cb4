//! The pool of the connections of all servers.
//!
//! A new connection is never refused and never waits. If there are too many, the source address
//! with the most connections loses the least recently used one. So every client gets its answer,
//! whatever other clients do.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use nix::sys::resource::{Resource, getrlimit};
use tokio::task::AbortHandle;

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
    sources: HashMap<IpAddr, Source>,
    count: usize,
    unread: usize,
    /// A logical clock: each use of a connection advances it.
    clock: u64,
    logged: Option<Instant>,
}

/// The connections of one source.
#[derive(Debug, Default)]
struct Source {
    /// By last use.
    connections: BTreeMap<u64, Connection>,
    /// The last use of each connection, by its id.
    last_uses: HashMap<u64, u64>,
    unread: usize,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    /// The size of answers that the client has not read.
    unread: usize,
    /// `None` until the task runs.
    task: Option<AbortHandle>,
}

/// A connection's slot in the pool, which dropping frees.
#[derive(Debug)]
pub(super) struct Slot {
    connections: Connections,
    source: IpAddr,
    /// The value of the clock at its creation.
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
    pub(super) fn enter(&self, from: IpAddr) -> Slot {
        let source = aggregated(from);
        let mut pool = self.lock();
        if pool.sources.get(&source).is_some_and(|s| s.connections.len() >= self.limits.per_source)
        {
            pool.close_oldest_of(source);
        } else if pool.count >= self.limits.connections {
            pool.close_one();
        }
        let id = pool.tick();
        let entry = pool.sources.entry(source).or_default();
        entry.connections.insert(id, Connection { id, unread: 0, task: None });
        entry.last_uses.insert(id, id);
        pool.count += 1;
        Slot { connections: self.clone(), source, id }
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
        let by_count = |source: &Source| source.connections.len();
        let Some(source) = self.largest(by_count) else { return false };
        self.close_oldest_of(source);
        true
    }

    /// Returns the source with the largest value; of several, the one with the oldest connection.
    fn largest(&self, of: impl Fn(&Source) -> usize) -> Option<IpAddr> {
        let oldest = |source: &Source| source.connections.keys().next().copied();
        let sources = self.sources.iter();
        let largest =
            sources.max_by_key(|(_, source)| (of(source), std::cmp::Reverse(oldest(source))));
        largest.map(|(address, _)| *address)
    }

    fn close_oldest_of(&mut self, address: IpAddr) {
        let Some(source) = self.sources.get(&address) else { return };
        if let Some(key) = source.connections.keys().next().copied() {
            self.close(address, key);
        }
    }

    fn close(&mut self, address: IpAddr, key: u64) {
        if let Some(Connection { task: Some(task), .. }) = self.remove(address, key) {
            task.abort();
        }
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_PERIOD) {
            self.logged = Some(Instant::now());
            tracing::warn!(
                client = %address, connections = self.count + 1,
                "too many connections to the health and metrics ports, closed the least recently used \
                 one of the client with the most"
            );
        }
    }

    fn remove(&mut self, address: IpAddr, key: u64) -> Option<Connection> {
        let source = self.sources.get_mut(&address)?;
        let connection = source.connections.remove(&key)?;
        source.last_uses.remove(&connection.id);
        source.unread -= connection.unread;
        self.unread -= connection.unread;
        self.count -= 1;
        if source.connections.is_empty() {
            self.sources.remove(&address);
        }
        Some(connection)
    }

    /// Returns the key of a connection, unless it was closed.
    fn find(&self, address: IpAddr, id: u64) -> Option<u64> {
        self.sources.get(&address)?.last_uses.get(&id).copied()
    }

    fn connection(&mut self, address: IpAddr, id: u64) -> Option<(&mut Source, u64)> {
        let key = self.find(address, id)?;
        Some((self.sources.get_mut(&address)?, key))
    }

    /// Changes the counts of unread bytes of a connection, its source and the pool.
    fn count_unread(&mut self, address: IpAddr, id: u64, change: impl Fn(&mut usize)) {
        let Some((source, key)) = self.connection(address, id) else { return };
        let Some(connection) = source.connections.get_mut(&key) else { return };
        change(&mut connection.unread);
        change(&mut source.unread);
        change(&mut self.unread);
    }
}

impl Slot {
    /// Sets the task to abort when the pool closes the connection.
    pub(super) fn serve_by(&self, task: AbortHandle) {
        let mut pool = self.connections.lock();
        let Some((source, key)) = pool.connection(self.source, self.id) else {
            task.abort();
            return;
        };
        if let Some(connection) = source.connections.get_mut(&key) {
            connection.task = Some(task);
        }
    }

    /// Returns a handle to the slot, which does not free it.
    pub(super) fn handle(&self) -> Handle {
        Handle { connections: self.connections.clone(), source: self.source, id: self.id }
    }

    /// Returns true if the pool closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.connections.lock().find(self.source, self.id).is_none()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut pool = self.connections.lock();
        if let Some(key) = pool.find(self.source, self.id) {
            pool.remove(self.source, key);
        }
    }
}

/// A handle to a slot, for the requests of its connection.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    connections: Connections,
    source: IpAddr,
    id: u64,
}

impl Handle {
    /// Marks the connection as just used.
    pub(super) fn used(&self) {
        let mut pool = self.connections.lock();
        let now = pool.tick();
        if let Some((source, key)) = pool.connection(self.source, self.id)
            && let Some(connection) = source.connections.remove(&key)
        {
            source.connections.insert(now, connection);
            source.last_uses.insert(self.id, now);
        }
    }

    /// Returns the body of an answer, which counts as unread until it is written. If there are too
    /// many unread bytes, closes the least recently used connection of the source with the most.
    pub(super) fn answer(&self, body: Bytes) -> Bytes {
        let mut pool = self.connections.lock();
        let size = body.len();
        pool.count_unread(self.source, self.id, |unread| *unread += size);
        while pool.unread > self.connections.limits.unread {
            let Some(address) = pool.largest(|source| source.unread) else { break };
            let Some(source) = pool.sources.get(&address) else { break };
            let unread =
                |(key, c): (&u64, &Connection)| (c.unread > 0 && c.id != self.id).then_some(*key);
            let Some(key) = source.connections.iter().find_map(unread) else { break };
            pool.close(address, key);
        }
        Bytes::from_owner(Unread { body, handle: self.clone() })
    }
}

/// The body of an unwritten answer.
struct Unread {
    body: Bytes,
    handle: Handle,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Handle { connections, source, id } = &self.handle;
        let size = self.body.len();
        connections.lock().count_unread(*source, *id, |unread| *unread -= size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(count: usize, per_source: usize, unread: usize) -> Connections {
        let limits = Limits { connections: count, per_source, unread, ..Limits::default() };
        Connections::new(limits)
    }

    fn from(host: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, host])
    }

    fn open(slots: &[Slot]) -> Vec<bool> {
        slots.iter().map(|slot| !slot.is_closed()).collect()
    }

    #[test]
    fn the_least_recently_used_connection_of_a_source_is_closed_first() {
        let pool = connections(10, 3, 1000);
        let mut slots: Vec<Slot> = (0..3).map(|_| pool.enter(from(1))).collect();
        slots.push(pool.enter(from(2)));
        slots[0].handle().used();
        slots.push(pool.enter(from(1)));
        assert_eq!(open(&slots), [true, false, true, true, true]);
        drop(slots);
        assert_eq!(pool.lock().count, 0);
        assert!(pool.lock().sources.is_empty());
    }

    #[test]
    fn the_source_with_the_most_connections_makes_room_for_others() {
        let pool = connections(4, 3, 1000);
        let mut slots = vec![pool.enter(from(1))];
        slots.extend((0..3).map(|_| pool.enter(from(2))));
        slots.push(pool.enter(from(3)));
        assert_eq!(open(&slots), [true, false, true, true, true]);
        slots.push(pool.enter(from(4)));
        assert_eq!(open(&slots), [true, false, false, true, true, true]);
        // All have one each: the oldest goes.
        slots.push(pool.enter(from(5)));
        assert_eq!(open(&slots), [false, false, false, true, true, true, true]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_mapped_ipv4_is_ipv4() {
        let of = |address: &str| aggregated(address.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), from(1));
    }

    #[test]
    fn unread_answers_are_bounded() {
        let pool = connections(10, 10, 250);
        let slots: Vec<Slot> = [1, 2, 2, 3].map(|host| pool.enter(from(host))).into();
        let answer = |slot: &Slot| slot.handle().answer("x".repeat(100).into());
        let mut answers: Vec<Bytes> = slots[..3].iter().map(answer).collect();
        // Of the source with two, the older one.
        assert_eq!(open(&slots), [true, false, true, true]);
        assert_eq!(pool.lock().unread, 200);
        drop(answers.remove(0));
        assert_eq!(pool.lock().unread, 100);
        answers.push(answer(&slots[3]));
        assert_eq!(open(&slots), [true, false, true, true]);
        // One answer may be larger than all may be.
        drop(answers);
        let _large = slots[0].handle().answer("x".repeat(300).into());
        assert!(!slots[0].is_closed());
        assert_eq!(pool.lock().unread, 300);
    }

    #[test]
    fn room_is_made_as_long_as_there_are_connections() {
        let pool = connections(10, 10, 1000);
        let slots: Vec<Slot> = [1, 2].map(|host| pool.enter(from(host))).into();
        assert!(pool.make_room() && pool.make_room() && !pool.make_room());
        assert_eq!(open(&slots), [false, false]);
    }
}
