//! What waits for the dataplane's thread, and since when.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{ChangeCounts, Order};

/// Where sources send their orders to. Clones lead to the same thread.
#[derive(Clone)]
pub struct Orders {
    sender: Sender<Order>,
    backlog: Backlog,
    noticed: Noticed,
}

/// Who is told of each order before it is sent.
pub(super) type Noticed = Arc<dyn Fn(ChangeCounts) + Send + Sync>;

/// The thread is gone: the order will not be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the dataplane has stopped")]
pub struct Stopped;

/// Since when what was ordered has been waiting: for a thread that is busy, that does not go on, or
/// that cannot commit. Clones show the same.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// When each order was sent that the thread has not taken yet.
    queued: VecDeque<Instant>,
    /// When the oldest was sent of those that it has taken, but that are not in the kernel yet; or
    /// when it failed to repair what somebody else had changed.
    taken: Option<Instant>,
}

/// Where orders go to, where they come from, and what waits in between.
pub(super) fn queue(noticed: Noticed) -> (Orders, Receiver<Order>, Backlog) {
    let (sender, orders) = mpsc::channel();
    let backlog = Backlog::default();
    (Orders { sender, backlog: backlog.clone(), noticed }, orders, backlog)
}

impl Orders {
    /// Sends an order.
    ///
    /// # Errors
    /// [`Stopped`] if there is nobody any more who would follow it.
    pub fn send(&self, order: Order) -> Result<(), Stopped> {
        (self.noticed)(order.counts());
        // The thread counts what it takes, so the orders must come in the order of this list.
        let mut waiting = self.backlog.lock();
        waiting.queued.push_back(Instant::now());
        self.sender.send(order).map_err(|_| Stopped)
    }

    /// Shows what waits.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.backlog.clone()
    }
}

impl Backlog {
    /// When the oldest order was sent that the kernel does not know of yet, or since when it holds
    /// something else than is planned.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        let waiting = self.lock();
        waiting.taken.or_else(|| waiting.queued.front().copied())
    }

    /// The thread took the next order.
    pub(super) fn take(&self) {
        let mut waiting = self.lock();
        let next = waiting.queued.pop_front();
        waiting.taken = waiting.taken.or(next);
    }

    /// The kernel does not hold what is planned, and cannot be brought to.
    pub(super) fn fail(&self) {
        self.lock().taken.get_or_insert_with(Instant::now);
    }

    /// Nothing of what was taken has to wait any more.
    pub(super) fn finish(&self) {
        self.lock().taken = None;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // What was noted stays true, whoever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Update;
    use super::*;

    fn send(orders: &Orders) -> Result<(), Stopped> {
        orders.send(Order::Update(Update::now(Vec::new())))
    }

    #[test]
    fn the_oldest_order_counts_until_it_is_followed() {
        let (orders, receiver, backlog) = queue(Arc::new(|_| ()));
        assert_eq!(backlog.oldest(), None);
        send(&orders).expect("a receiver");
        let first = backlog.oldest().expect("one that waits");
        send(&orders).expect("a receiver");
        assert_eq!(backlog.oldest(), Some(first));

        assert_eq!(receiver.try_iter().count(), 2);
        backlog.take();
        backlog.take();
        assert_eq!(backlog.oldest(), Some(first), "taken is not followed");
        send(&orders).expect("a receiver");
        backlog.finish();
        let third = backlog.oldest().expect("one that came meanwhile");
        assert!(third > first);
        // That one is taken and cannot be committed, and more come.
        backlog.take();
        send(&orders).expect("a receiver");
        backlog.take();
        assert_eq!(backlog.oldest(), Some(third));
        backlog.finish();
        assert_eq!(backlog.oldest(), None);
    }

    #[test]
    fn a_failed_repair_waits_though_nobody_ordered_it() {
        let (_orders, _receiver, backlog) = queue(Arc::new(|_| ()));
        backlog.fail();
        let since = backlog.oldest().expect("a failure");
        backlog.fail();
        assert_eq!(backlog.oldest(), Some(since), "the first failure counts");
        backlog.finish();
        assert_eq!(backlog.oldest(), None);
    }

    #[test]
    fn what_nobody_takes_waits_for_ever() {
        let (orders, receiver, backlog) = queue(Arc::new(|_| ()));
        drop(receiver);
        assert_eq!(send(&orders), Err(Stopped));
        assert!(backlog.oldest().is_some());
    }
}
