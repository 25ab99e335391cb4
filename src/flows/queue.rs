//! The queue of sweeps, from the dataplane to the thread that runs them.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nfnetlink::conntrack::Connection;

use super::Sweep;

/// The sending end of the queue. Its drop ends the thread.
///
/// The caller calls [`Sweeps::announce`] before each commit that changes the backends of a frontend,
/// **also for additions**, and [`Sweeps::committed`] after it. A sweep that waits or is in progress
/// must not delete flows that a later commit allows.
pub struct Sweeps {
    sender: Sender<Message>,
    /// True after the first sweep, which may be in progress.
    started: bool,
    unswept: Unswept,
}

/// The age of the commits whose flows are not swept, and what is wrong. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Unswept(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The time of the oldest commit in the queue.
    queued: Option<Instant>,
    /// The time of the oldest commit whose sweep is in progress or has failed.
    taken: Option<Instant>,
    trouble: Option<String>,
}

impl Unswept {
    /// Returns the time of the oldest commit whose flows are not swept. The thread may be busy,
    /// hang, or fail.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        let state = self.lock();
        state.taken.or(state.queued)
    }

    /// Returns why stale flows stay.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    /// Notes that the thread has taken all commits from the queue.
    fn take(&self) {
        let mut state = self.lock();
        let since = state.queued.take().unwrap_or_else(Instant::now);
        state.taken.get_or_insert(since);
    }

    /// Notes that a sweep failed.
    pub(super) fn fail(&self) {
        self.lock().taken.get_or_insert_with(Instant::now);
    }

    /// Notes that no sweep is in progress, and that none has failed.
    pub(super) fn finish(&self) {
        self.lock().taken = None;
    }

    /// Notes why stale flows stay, and returns what was noted before.
    pub(super) fn set_trouble(&self, trouble: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.lock().trouble, trouble)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each value is consistent by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message about a commit.
enum Message {
    Announced(Sweep),
    Committed(Sweep),
}

impl Sweeps {
    /// Announces a commit. From now on, sweeps keep flows to its backends.
    pub fn announce(&self, upcoming: impl FnOnce() -> Sweep) {
        if self.started {
            self.send(Message::Announced(upcoming()));
        }
    }

    /// Requests a sweep after a commit. The caller passes all frontends first.
    pub fn committed(&mut self, sweep: Sweep) {
        self.started = true;
        self.unswept.lock().queued.get_or_insert_with(Instant::now);
        self.send(Message::Committed(sweep));
    }

    /// Returns the state of the sweeps.
    #[must_use]
    pub fn unswept(&self) -> Unswept {
        self.unswept.clone()
    }

    fn send(&self, message: Message) {
        // The thread is gone only if the process is ending.
        let _ = self.sender.send(message);
    }
}

/// Makes a queue.
pub(super) fn channel() -> (Sweeps, Queue) {
    let (sender, receiver) = mpsc::channel();
    let unswept = Unswept::default();
    let queue = Queue { receiver, waiting: None, upcoming: None, unswept: unswept.clone() };
    (Sweeps { sender, started: false, unswept }, queue)
}

/// The receiving end of the queue, with what waits in it.
pub(super) struct Queue {
    receiver: Receiver<Message>,
    /// The waiting sweeps, merged.
    waiting: Option<Sweep>,
    /// The last announced commit, until a sync succeeds.
    upcoming: Option<Sweep>,
    pub(super) unswept: Unswept,
}

impl Queue {
    fn receive(&mut self, message: Message) {
        match message {
            Message::Announced(upcoming) => self.upcoming = Some(upcoming),
            Message::Committed(sweep) => {
                self.upcoming = None;
                match &mut self.waiting {
                    Some(waiting) => waiting.merge(sweep),
                    None => self.waiting = Some(sweep),
                }
            }
        }
    }

    fn receive_all(&mut self) {
        while let Ok(message) = self.receiver.try_recv() {
            self.receive(message);
        }
    }

    /// Waits for a sweep, if given until a time at most.
    pub(super) fn next(&mut self, until: Option<Instant>) -> Result<Sweep, RecvTimeoutError> {
        loop {
            self.receive_all();
            if let Some(sweep) = self.waiting.take() {
                self.unswept.take();
                return Ok(sweep);
            }
            let message = match until {
                None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)?,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.receiver.recv_timeout(left)?
                }
            };
            self.receive(message);
        }
    }

    /// Returns true if an announced commit or a waiting sweep allows the flow. The announcement of a
    /// commit is older than all flows that follow its rules. So after a listing, the queue has the
    /// announcements for all listed entries.
    pub(super) fn permits(&mut self, entry: &Connection) -> bool {
        self.receive_all();
        [&self.waiting, &self.upcoming].into_iter().flatten().any(|sweep| sweep.permits(entry))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shunt_core::model::{Backend, Protocol};
    use shunt_core::plan::{Flow, Flows, FrontendKey};

    use super::*;
    use crate::flows::sweep::tests::entry_of;

    const FRONTEND: &str = "10.96.0.10:53";
    const NONE: [u16; 0] = [];

    /// A sweep of one frontend with endpoints on these ports.
    fn sweep(ports: &[u16]) -> Sweep {
        let frontend = FRONTEND.parse::<std::net::SocketAddr>().expect("address:port");
        let address = "10.244.0.1".parse().expect("an address");
        let serving = ports.iter().map(|port| Backend { address, port: *port }).collect();
        let key = FrontendKey::Address(frontend.ip(), Protocol::Udp, frontend.port());
        Sweep::new(Flows::from_iter([(key, Flow { serving, search: true })]), BTreeSet::new())
    }

    fn entry(port: u16) -> Connection {
        let endpoint = format!("10.244.0.1:{port}");
        entry_of(17, "192.0.2.1:40000", FRONTEND, &endpoint)
    }

    /// Returns which of these ports the announced commits allow.
    fn permitted(queue: &mut Queue) -> Vec<u16> {
        (1..=4).filter(|port| queue.permits(&entry(*port))).collect()
    }

    #[test]
    fn flows_to_backends_of_later_commits_are_kept() {
        let (mut sweeps, mut queue) = channel();
        sweeps.committed(sweep(&[1]));
        assert_eq!(queue.next(None), Ok(sweep(&[1])));
        assert_eq!(permitted(&mut queue), NONE, "what is swept decides itself");

        sweeps.announce(|| sweep(&[2]));
        assert_eq!(permitted(&mut queue), [2], "during the commit");
        sweeps.announce(|| sweep(&[2, 3]));
        assert_eq!(permitted(&mut queue), [2, 3], "the first attempt failed");
        sweeps.committed(sweep(&[2, 3]));
        assert_eq!(permitted(&mut queue), [2, 3], "the next sweep waits");
        sweeps.announce(|| sweep(&[4]));
        assert_eq!(permitted(&mut queue), [2, 3, 4], "during the next commit");

        assert_eq!(queue.next(None), Ok(sweep(&[2, 3])));
        assert_eq!(permitted(&mut queue), [4], "the commit may still be in progress");
        sweeps.committed(sweep(&[4]));
        assert_eq!(queue.next(None), Ok(sweep(&[4])));
        assert_eq!(permitted(&mut queue), NONE);
    }

    #[test]
    fn oldest_commit_counts_until_its_sweep_ends() {
        let (mut sweeps, mut queue) = channel();
        let unswept = sweeps.unswept();
        assert_eq!(unswept.oldest(), None);
        sweeps.committed(sweep(&[1]));
        let first = unswept.oldest().expect("one that waits");
        sweeps.committed(sweep(&[2]));
        assert_eq!(queue.next(None), Ok(sweep(&[2])));
        assert_eq!(unswept.oldest(), Some(first), "in progress");
        sweeps.committed(sweep(&[3]));
        assert!(queue.permits(&entry(3)), "received during the sweep");
        unswept.finish();
        assert!(unswept.oldest().is_some_and(|next| next > first), "{unswept:?}");
        assert_eq!(queue.next(None), Ok(sweep(&[3])));
        unswept.finish();
        assert_eq!(unswept.oldest(), None);
    }

    #[test]
    fn announcement_starts_no_sweep() {
        let (mut sweeps, mut queue) = channel();
        sweeps.announce(|| unreachable!("nothing is swept yet"));
        sweeps.committed(sweep(&[1]));
        sweeps.announce(|| sweep(&[2]));
        assert_eq!(queue.next(None), Ok(sweep(&[1])));
        assert_eq!(queue.next(Some(Instant::now())), Err(RecvTimeoutError::Timeout));
        drop(sweeps);
        assert_eq!(queue.next(None), Err(RecvTimeoutError::Disconnected));
    }
}
