//! A kernel that refuses what a test wants refused.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use shunt::nft::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, Error, FinishedBatch,
    Generation, Kernel, Refusal, Socket, TableFamily,
};

type Refuse = Box<dyn Fn(&Refusal) -> Option<Errno> + Send>;

/// What a test tells the kernel while the dataplane has it.
#[derive(Clone)]
pub(crate) struct Faults {
    refuse: Arc<Mutex<Refuse>>,
    commits: Arc<AtomicUsize>,
    lost: Arc<AtomicBool>,
}

impl Faults {
    /// The real kernel, as long as nothing is to be refused.
    pub(crate) fn new(socket: Socket) -> (Faults, Box<dyn Kernel>) {
        let none: Refuse = Box::new(|_| None);
        let faults = Faults {
            refuse: Arc::new(Mutex::new(none)),
            commits: Arc::default(),
            lost: Arc::default(),
        };
        (faults.clone(), Box::new(Faulty { socket, faults }))
    }

    /// From now on refuses transactions with messages for which there is an error.
    pub(crate) fn refuse(&self, what: impl Fn(&Refusal) -> Option<Errno> + Send + 'static) {
        *self.refuse.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(what);
    }

    /// The socket is of no use until another one is opened.
    pub(crate) fn lose_the_socket(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// The number of transactions since the last call.
    pub(crate) fn commits(&self) -> usize {
        self.commits.swap(0, Ordering::Relaxed)
    }
}

struct Faulty {
    socket: Socket,
    faults: Faults,
}

impl Kernel for Faulty {
    fn commit(&mut self, batch: &FinishedBatch) -> Result<(), Error> {
        if self.faults.lost.load(Ordering::Relaxed) {
            let bytes = batch.bytes().len();
            return Err(Error::Send { bytes, source: Errno::ENOTSOCK.into() });
        }
        self.faults.commits.fetch_add(1, Ordering::Relaxed);
        let refuse = self.faults.refuse.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = (1..=batch.messages()).map(|n| batch.refusal(n, Errno::EINVAL, None));
        let refusals: Vec<Refusal> = messages
            .filter_map(|message| refuse(&message).map(|errno| Refusal { errno, ..message }))
            .collect();
        if refusals.is_empty() { self.socket.commit(batch) } else { Err(Error::Refused(refusals)) }
    }

    fn generation(&mut self) -> Result<Generation, Error> {
        self.socket.generation()
    }

    fn port(&self) -> u32 {
        self.socket.port()
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        self.faults.lost.store(false, Ordering::Relaxed);
        self.socket.reconnect()
    }

    fn table(&mut self, family: TableFamily, table: &str) -> Result<Option<DumpedTable>, Error> {
        self.socket.table(family, table)
    }

    fn chains(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedChain>, Error> {
        self.socket.chains(family, table)
    }

    fn sets(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedSet>, Error> {
        self.socket.sets(family, table)
    }

    fn rules(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedRule>, Error> {
        self.socket.rules(family, table)
    }

    fn elements(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(DumpedElement<'_>),
    ) -> Result<(), Error> {
        self.socket.elements(family, table, set, each)
    }
}
