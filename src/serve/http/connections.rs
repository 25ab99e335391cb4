//! The connections of all servers, of which the oldest make room for new ones.
//!
//! A new connection is never refused and never waits. A client that asks at once gets its answer,
//! whatever clients do that came before it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::Notify;

use crate::serve::lock;
use crate::serve::time::Seldom;

/// The maximum size of the answers that clients may not have read, in bytes: the last one of each
/// connection.
const ANSWERS: usize = 8 << 20;

/// About connections that made room.
static CLOSED: Seldom = Seldom::new();

/// The open connections. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    most: usize,
    /// The oldest one first.
    open: Arc<Mutex<VecDeque<Weak<Slot>>>>,
}

/// A connection, while this exists.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The size of its last answer.
    answer: AtomicUsize,
    /// Tells its task that another one needs the room.
    pub(super) closed: Notify,
}

impl Default for Connections {
    /// Leaves three quarters of the process's file descriptors for other uses.
    fn default() -> Connections {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        Connections::new(usize::try_from(files / 4).unwrap_or(usize::MAX).clamp(16, 512))
    }
}

impl Connections {
    /// Permits so many connections.
    pub(super) fn new(most: usize) -> Connections {
        Connections { most, open: Arc::default() }
    }

    /// Returns a slot for a new connection.
    pub(super) fn enter(&self) -> Arc<Slot> {
        self.close(|open, _| open >= self.most);
        let slot = Arc::new(Slot::default());
        let mut open = lock(&self.open);
        open.push_back(Arc::downgrade(&slot));
        slot
    }

    /// Notes the size of an answer on a connection.
    pub(super) fn answers(&self, slot: &Slot, size: usize) {
        slot.answer.store(size, Ordering::Relaxed);
        self.close(|open, unread| open > 1 && unread > ANSWERS);
    }

    /// Closes the oldest connections while their number, or the size of their answers, is too much.
    fn close(&self, is_too_much: impl Fn(usize, usize) -> bool) {
        let mut open = lock(&self.open);
        open.retain(|slot| slot.strong_count() > 0);
        let slots = open.iter().filter_map(Weak::upgrade);
        let mut unread: usize = slots.map(|slot| slot.answer.load(Ordering::Relaxed)).sum();
        let connections = open.len();
        while is_too_much(open.len(), unread)
            && let Some(oldest) = open.pop_front()
        {
            if let Some(oldest) = oldest.upgrade() {
                unread = unread.saturating_sub(oldest.answer.load(Ordering::Relaxed));
                oldest.closed.notify_one();
            }
            if CLOSED.may() {
                tracing::warn!(
                    connections,
                    "too many connections to the health and metrics ports, closed the oldest one"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true for each slot that is still in use.
    fn open(slots: &[Arc<Slot>]) -> Vec<bool> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let is_open = |slot: &Arc<Slot>| {
            let closed = std::pin::pin!(slot.closed.notified());
            Future::poll(closed, &mut context).is_pending()
        };
        slots.iter().map(is_open).collect()
    }

    #[test]
    fn the_oldest_connection_makes_room() {
        let pool = Connections::new(2);
        let slots = [pool.enter(), pool.enter(), pool.enter()];
        assert_eq!(open(&slots), [false, true, true]);
        drop(slots);
        let slots = [pool.enter(), pool.enter()];
        assert_eq!(open(&slots), [true, true], "ended ones take no room");
    }

    #[test]
    fn answers_that_nobody_reads_take_a_bounded_amount_of_memory() {
        let pool = Connections::new(100);
        let slots = [pool.enter(), pool.enter(), pool.enter()];
        pool.answers(&slots[2], 2 * ANSWERS);
        assert_eq!(open(&slots), [false, false, true], "one is always permitted");
        pool.answers(&pool.enter(), 1);
        assert_eq!(open(&slots[2..]), [false]);
    }
}
