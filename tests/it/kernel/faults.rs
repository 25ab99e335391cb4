//! A kernel that refuses what a test wants refused.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nfnetlink::nft::{Error, Kernel, Refusal, Socket};
use nix::errno::Errno;
use shunt_fake_nftables::{Call, Fault, Faulty};

type Refuse = Box<dyn Fn(&Refusal) -> Option<Errno> + Send>;

/// What a test tells the kernel while the dataplane has it.
#[derive(Clone)]
pub(crate) struct Faults {
    refuse: Arc<Mutex<Refuse>>,
    commits: Arc<AtomicUsize>,
    lists: Arc<AtomicUsize>,
    lost: Arc<AtomicBool>,
    torn: Arc<AtomicUsize>,
}

impl Faults {
    /// The real kernel, as long as nothing is to be refused.
    pub(crate) fn new(socket: Socket) -> (Faults, Box<dyn Kernel>) {
        let none: Refuse = Box::new(|_| None);
        let faults = Faults {
            refuse: Arc::new(Mutex::new(none)),
            commits: Arc::default(),
            lists: Arc::default(),
            lost: Arc::default(),
            torn: Arc::default(),
        };
        let told = faults.clone();
        (faults, Box::new(Faulty::new(socket, move |call| told.decide(call))))
    }

    /// From now on refuses transactions with messages for which there is an error.
    pub(crate) fn refuse(&self, what: impl Fn(&Refusal) -> Option<Errno> + Send + 'static) {
        *self.refuse.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(what);
    }

    /// The socket is of no use until another one is opened.
    pub(crate) fn lose_the_socket(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// The next lists, so many of them, have some elements twice and others not at all.
    pub(crate) fn tear_lists(&self, lists: usize) {
        self.torn.store(lists, Ordering::Relaxed);
    }

    /// The number of transactions since the last call.
    pub(crate) fn commits(&self) -> usize {
        self.commits.swap(0, Ordering::Relaxed)
    }

    /// The number of lists since the last call.
    pub(crate) fn lists(&self) -> usize {
        self.lists.swap(0, Ordering::Relaxed)
    }

    fn decide(&self, call: Call<'_>) -> Option<Fault> {
        let batch = match call {
            Call::Commit(batch) => batch,
            Call::Reconnect => {
                self.lost.store(false, Ordering::Relaxed);
                return None;
            }
            Call::List => {
                self.lists.fetch_add(1, Ordering::Relaxed);
                let left = self.torn.load(Ordering::Relaxed);
                self.torn.store(left.saturating_sub(1), Ordering::Relaxed);
                return (left > 0).then_some(Fault::Torn);
            }
            Call::Generation | Call::Lookup => return None,
        };
        if self.lost.load(Ordering::Relaxed) {
            let bytes = batch.bytes().len();
            return Some(Fault::Before(Error::Send { bytes, reason: Errno::ENOTSOCK.into() }));
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        let refuse = self.refuse.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = (1..=batch.messages()).map(|n| batch.refusal(n, Errno::EINVAL, None));
        let refusals: Vec<Refusal> = messages
            .filter_map(|message| refuse(&message).map(|errno| Refusal { errno, ..message }))
            .collect();
        (!refusals.is_empty()).then_some(Fault::Before(Error::Refused(refusals)))
    }
}
