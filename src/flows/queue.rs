//! The queue of sweeps, from the dataplane to the thread that runs them.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nfnetlink::conntrack::Connection;

use super::Sweep;

/// The sending end of the queue. Its drop ends the thread.
pub struct Sweeps {
    sender: Sender<Sweep>,
    unswept: Unswept,
}

/// The age of the commits whose flows are not swept, and what is wrong. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Unswept(Arc<Mutex<SweepQueueState>>);

#[derive(Debug, Default)]
struct SweepQueueState {
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

    fn lock(&self) -> MutexGuard<'_, SweepQueueState> {
        // Each value is consistent by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sweeps {
    /// Requests a sweep after a commit, with all frontends whose backends changed, **also by
    /// additions**: a sweep that waits or is in progress must not delete flows that a later commit
    /// allows.
    pub fn committed(&self, sweep: Sweep) {
        self.unswept.lock().queued.get_or_insert_with(Instant::now);
        // The thread is gone only if the process is ending.
        let _ = self.sender.send(sweep);
    }

    /// Returns the state of the sweeps.
    #[must_use]
    pub fn unswept(&self) -> Unswept {
        self.unswept.clone()
    }
}

/// Makes a queue.
pub(super) fn channel() -> (Sweeps, SweepQueue) {
    let (sender, receiver) = mpsc::channel();
    let unswept = Unswept::default();
    let queue = SweepQueue { receiver, waiting: None, unswept: unswept.clone() };
    (Sweeps { sender, unswept }, queue)
}

/// The receiving end of the queue, with what waits in it.
pub(super) struct SweepQueue {
    receiver: Receiver<Sweep>,
    /// The waiting sweeps, merged.
    waiting: Option<Sweep>,
    pub(super) unswept: Unswept,
}

impl SweepQueue {
    fn receive(&mut self, sweep: Sweep) {
        match &mut self.waiting {
            Some(waiting) => waiting.merge(sweep),
            None => self.waiting = Some(sweep),
        }
    }

    fn receive_all(&mut self) {
        while let Ok(sweep) = self.receiver.try_recv() {
            self.receive(sweep);
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
            let sweep = match until {
                None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)?,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.receiver.recv_timeout(left)?
                }
            };
            self.receive(sweep);
        }
    }

    /// Returns true if a waiting sweep allows the flow: its commit is later than the sweep in progress.
    pub(super) fn permits(&mut self, entry: &Connection) -> bool {
        self.receive_all();
        self.waiting.as_ref().is_some_and(|sweep| sweep.permits(entry))
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

    #[test]
    fn flows_to_backends_of_later_commits_are_kept() {
        let (sweeps, mut queue) = channel();
        let permitted = |queue: &mut SweepQueue| -> Vec<u16> {
            (1..=4).filter(|port| queue.permits(&entry(*port))).collect()
        };
        sweeps.committed(sweep(&[1]));
        assert_eq!(queue.next(None), Ok(sweep(&[1])));
        assert_eq!(permitted(&mut queue), NONE, "what is swept decides itself");
        sweeps.committed(sweep(&[2, 3]));
        assert_eq!(permitted(&mut queue), [2, 3], "the next sweep waits");
        assert_eq!(queue.next(None), Ok(sweep(&[2, 3])));
        assert_eq!(permitted(&mut queue), NONE);
        assert_eq!(queue.next(Some(Instant::now())), Err(RecvTimeoutError::Timeout));
        drop(sweeps);
        assert_eq!(queue.next(None), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn oldest_commit_counts_until_its_sweep_ends() {
        let (sweeps, mut queue) = channel();
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
}
