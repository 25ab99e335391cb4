//! What the requests of a stand-in have in common, and the test with them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::{broadcast, watch};
use tokio_rustls::TlsAcceptor;

use crate::object::Kind;

use super::TOKEN;
use super::misbehaviour::Faults;
use super::request::Request;
use super::store::Store;

pub(super) struct Shared {
    store: Mutex<Store>,
    token: Mutex<String>,
    faults: Mutex<Faults>,
    /// All requests so far; those who wait for one are told of each.
    pub(super) requests: watch::Sender<Vec<Request>>,
    /// The revision, for watches to wait on.
    pub(super) written: watch::Sender<u64>,
    pub(super) open_watches: watch::Sender<BTreeMap<Kind, usize>>,
    /// Open watches of these kinds break off.
    pub(super) broken: broadcast::Sender<Kind>,
    /// Connections end when this changes.
    pub(super) epoch: watch::Sender<u64>,
    tls: Mutex<Option<TlsAcceptor>>,
}

impl Shared {
    pub(super) fn new(tls: Option<TlsAcceptor>) -> Self {
        Self {
            store: Mutex::new(Store::new()),
            token: Mutex::new(TOKEN.to_owned()),
            faults: Mutex::default(),
            requests: watch::Sender::new(Vec::new()),
            written: watch::Sender::new(0),
            open_watches: watch::Sender::default(),
            broken: broadcast::Sender::new(64),
            epoch: watch::Sender::new(0),
            tls: Mutex::new(tls),
        }
    }

    pub(super) fn record(&self, request: Request) {
        self.requests.send_modify(|requests| requests.push(request));
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// Changes the store, and wakes the watches.
    pub(super) fn write<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store();
        let result = change(&mut store);
        self.written.send_replace(store.revision());
        result
    }

    pub(super) fn token(&self) -> MutexGuard<'_, String> {
        lock(&self.token)
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }

    pub(super) fn tls(&self) -> Option<TlsAcceptor> {
        lock(&self.tls).clone()
    }

    pub(super) fn set_tls(&self, tls: Option<TlsAcceptor>) {
        *lock(&self.tls) = tls;
    }
}

/// A test that panicked while it held a lock has left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
