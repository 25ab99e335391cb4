//! The way from the commits to the thread for sweeps.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nfnetlink::conntrack::Entry;

use super::Sweep;

/// Hands sweeps to the thread, which ends when this is dropped.
///
/// The caller tells of each commit that changes the backends of a frontend, **also of additions**:
/// with [`Sweeps::announce`] before it, and with [`Sweeps::committed`] after it. A sweep that waits
/// or is in progress must not delete flows that a later commit allows.
pub struct Sweeps {
    sender: Sender<News>,
    /// There was a sweep, which may be in progress.
    started: bool,
}

/// What the thread hears about a commit.
enum News {
    Announced(Sweep),
    Committed(Sweep),
}

impl Sweeps {
    /// Tells of a commit that is about to be made: from now on, flows to its backends stay.
    pub fn announce(&self, upcoming: impl FnOnce() -> Sweep) {
        if self.started {
            self.send(News::Announced(upcoming()));
        }
    }

    /// Sweeps after a commit. After a start, the sweep has all frontends.
    pub fn committed(&mut self, sweep: Sweep) {
        self.started = true;
        self.send(News::Committed(sweep));
    }

    fn send(&self, news: News) {
        // The thread is gone only if the process is ending.
        let _ = self.sender.send(news);
    }
}

pub(super) fn channel() -> (Sweeps, Inbox) {
    let (sender, receiver) = mpsc::channel();
    (Sweeps { sender, started: false }, Inbox { receiver, waiting: None, upcoming: None })
}

/// What the thread has heard, but not swept yet.
pub(super) struct Inbox {
    receiver: Receiver<News>,
    /// The waiting sweeps, merged.
    waiting: Option<Sweep>,
    /// The backends after a commit that is being made, or that has failed.
    upcoming: Option<Sweep>,
}

impl Inbox {
    fn take(&mut self, news: News) {
        match news {
            News::Announced(upcoming) => self.upcoming = Some(upcoming),
            News::Committed(sweep) => {
                self.upcoming = None;
                match &mut self.waiting {
                    Some(waiting) => waiting.merge(sweep),
                    None => self.waiting = Some(sweep),
                }
            }
        }
    }

    fn take_all(&mut self) {
        while let Ok(news) = self.receiver.try_recv() {
            self.take(news);
        }
    }

    /// Waits for a sweep, for ever or for this long.
    pub(super) fn next(&mut self, patience: Option<Duration>) -> Result<Sweep, RecvTimeoutError> {
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            self.take_all();
            if let Some(sweep) = self.waiting.take() {
                return Ok(sweep);
            }
            let news = match until {
                None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)?,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.receiver.recv_timeout(left)?
                }
            };
            self.take(news);
        }
    }

    /// Returns true if a commit that was announced until now allows a flow. A listed entry that a
    /// commit allows was made after the announcement of the commit.
    pub(super) fn permits(&mut self, entry: &Entry) -> bool {
        self.take_all();
        [&self.waiting, &self.upcoming].into_iter().flatten().any(|sweep| sweep.permits(entry))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nfnetlink::conntrack::Tuple;
    use shunt_core::model::{Backend, Protocol};
    use shunt_core::plan::{Flow, Flows, FrontendKey};

    use super::*;

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

    fn entry(port: u16) -> Entry {
        let client = "192.0.2.1:40000".parse().expect("address:port");
        let endpoint = ([10, 244, 0, 1], port).into();
        let original =
            Tuple { source: client, destination: FRONTEND.parse().expect("address:port") };
        let reply = Tuple { source: endpoint, destination: client };
        let (zoned, replied, half_open, id) = (false, false, false, [0, 0, 0, 1]);
        Entry { protocol: 17, original, reply, zoned, replied, half_open, id }
    }

    /// Returns which of these ports the announced commits allow.
    fn permitted(inbox: &mut Inbox) -> Vec<u16> {
        (1..=4).filter(|port| inbox.permits(&entry(*port))).collect()
    }

    #[test]
    fn flows_to_backends_of_later_commits_stay() {
        let (mut sweeps, mut inbox) = channel();
        sweeps.committed(sweep(&[1]));
        assert_eq!(inbox.next(None), Ok(sweep(&[1])));
        assert_eq!(permitted(&mut inbox), NONE, "what is swept decides itself");

        sweeps.announce(|| sweep(&[2]));
        assert_eq!(permitted(&mut inbox), [2], "during the commit");
        sweeps.announce(|| sweep(&[2, 3]));
        assert_eq!(permitted(&mut inbox), [2, 3], "the first attempt failed");
        sweeps.committed(sweep(&[2, 3]));
        assert_eq!(permitted(&mut inbox), [2, 3], "the next sweep waits");
        sweeps.announce(|| sweep(&[4]));
        assert_eq!(permitted(&mut inbox), [2, 3, 4], "during the next commit");

        assert_eq!(inbox.next(None), Ok(sweep(&[2, 3])));
        assert_eq!(permitted(&mut inbox), [4], "the commit may still be in progress");
        sweeps.committed(sweep(&[4]));
        assert_eq!(inbox.next(None), Ok(sweep(&[4])));
        assert_eq!(permitted(&mut inbox), NONE);
    }

    #[test]
    fn an_announcement_is_no_sweep() {
        let (mut sweeps, mut inbox) = channel();
        sweeps.announce(|| unreachable!("nothing is swept yet"));
        sweeps.committed(sweep(&[1]));
        sweeps.announce(|| sweep(&[2]));
        assert_eq!(inbox.next(None), Ok(sweep(&[1])));
        assert_eq!(inbox.next(Some(Duration::ZERO)), Err(RecvTimeoutError::Timeout));
        drop(sweeps);
        assert_eq!(inbox.next(None), Err(RecvTimeoutError::Disconnected));
    }
}
