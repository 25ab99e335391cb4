//! The directory: the objects as of the last sync, for readers off the dataplane's thread.
//!
//! Owns: a second [`Store`] with the same objects as the dataplane's ([`Change`] shares them), and
//! when each Service changed. A thread of its own applies the changes after the sync that
//! programmed them, so that no commit waits for a reader, and readers see what the kernel holds.
//!
//! Must not know: nf_tables, the sources, or what a reader does with the objects.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};
use shunt_core::model::{Change, Dirty, ObjectName, Service, Store};

/// The changes of a sync.
#[derive(Debug)]
pub struct Programmed {
    /// The changes, in the order of their application.
    pub changes: Vec<Change>,
    /// When the source received them.
    pub received: SystemTime,
    /// The time from then to the commit.
    pub took: Duration,
}

/// When a Service or one of its EndpointSlices last changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastChange {
    /// When the source received the change.
    pub received: SystemTime,
    /// The time from then to the commit, in seconds.
    pub committed_after: f64,
}

/// A reader of the directory. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Directory(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    store: Store,
    /// The first sync, which is the last change of most Services. Its last batch counts.
    first: Option<LastChange>,
    /// The last changes of Services after the first sync.
    last_changes: HashMap<ObjectName, LastChange>,
    /// The number of applied syncs.
    revision: u64,
}

/// A part of the directory: the changes that rebuild it in an empty store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Excerpt {
    /// The number of applied syncs.
    pub revision: u64,
    /// The objects.
    pub changes: Vec<Change>,
    /// The last change of each Service of the excerpt.
    pub last_changes: Vec<(ObjectName, LastChange)>,
}

/// The Services that a reader needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selection {
    /// All Services.
    All,
    /// The Services with a frontend, or an address without one, at this destination.
    Address {
        /// The destination address.
        address: IpAddr,
        /// The destination port, which may be a node port.
        port: u16,
    },
    /// The Service of this name, and those that may claim one of its frontends.
    Service(ObjectName),
}

/// Returns all addresses of a Service, also those without a frontend.
fn addresses(service: &Service) -> impl Iterator<Item = &IpAddr> {
    let Service { cluster_ips, external_ips, load_balancer_ips, proxied_ips, .. } = service;
    [cluster_ips, external_ips, load_balancer_ips, proxied_ips].into_iter().flatten()
}

fn has_address(service: &Service, address: IpAddr) -> bool {
    addresses(service).any(|own| *own == address)
}

fn has_node_port(service: &Service, port: u16) -> bool {
    service.ports.iter().any(|own| own.node_port == Some(port))
}

fn may_conflict(one: &Service, other: &Service) -> bool {
    let node_ports = one.ports.iter().filter_map(|port| port.node_port);
    addresses(one).any(|address| has_address(other, *address))
        || node_ports.into_iter().any(|port| has_node_port(other, port))
}

impl Directory {
    /// Starts the thread that applies the changes. It ends with the last sender.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn spawn() -> io::Result<(Sender<Programmed>, Directory)> {
        let (sender, programmed) = mpsc::channel();
        let directory = Directory::default();
        let own = directory.clone();
        std::thread::Builder::new()
            .name("directory".to_owned())
            .spawn(move || own.follow(&programmed))?;
        Ok((sender, directory))
    }

    fn follow(&self, programmed: &Receiver<Programmed>) {
        while let Ok(first) = programmed.recv() {
            let mut contents = self.lock();
            contents.apply(first);
            programmed.try_iter().for_each(|next| contents.apply(next));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        // A panic in any thread ends the process.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the selected part of the directory.
    #[must_use]
    pub fn excerpt(&self, selection: &Selection) -> Excerpt {
        self.lock().excerpt(selection)
    }

    /// Returns the selected part of the directory; `None` if this is its revision.
    #[must_use]
    pub fn excerpt_unless(&self, revision: u64, selection: &Selection) -> Option<Excerpt> {
        let contents = self.lock();
        (contents.revision != revision).then(|| contents.excerpt(selection))
    }

    /// Calls `read` with the store. Changes wait until it returns, commits do not.
    pub fn read<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(&self.lock().store)
    }
}

impl Contents {
    fn excerpt(&self, selection: &Selection) -> Excerpt {
        let named = match selection {
            Selection::Service(name) => self.store.service(name),
            Selection::All | Selection::Address { .. } => None,
        };
        let wanted = |name: &ObjectName, service: Option<&Service>| match selection {
            Selection::All => true,
            Selection::Address { address, port } => service.is_some_and(|service| {
                has_address(service, *address) || has_node_port(service, *port)
            }),
            Selection::Service(wanted) => {
                let both = named.zip(service);
                name == wanted || both.is_some_and(|(one, other)| may_conflict(one, other))
            }
        };
        let services = self.store.services();
        let last_changes = services
            .filter(|service| wanted(&service.name, Some(service)))
            .filter_map(|service| Some((service.name.clone(), self.last_change(&service.name)?)));
        Excerpt {
            revision: self.revision,
            last_changes: last_changes.collect(),
            changes: self.store.excerpt(wanted),
        }
    }

    fn apply(&mut self, Programmed { changes, received, took }: Programmed) {
        let last = LastChange { received, committed_after: took.as_secs_f64() };
        let mut dirty = Dirty::default();
        let was_synced = self.store.is_synced();
        self.store.expect(&changes);
        for change in changes {
            self.store.apply(change, &mut dirty);
        }
        self.revision += 1;
        if !was_synced {
            self.first = Some(last);
            return;
        }
        for name in dirty.services {
            if self.store.service(&name).is_some() {
                self.last_changes.insert(name, last);
            } else {
                self.last_changes.remove(&name);
            }
        }
    }

    fn last_change(&self, service: &ObjectName) -> Option<LastChange> {
        self.last_changes.get(service).copied().or(self.first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shunt_core::model::Change;
    use shunt_fake_nftables::service;

    use super::*;

    #[test]
    fn the_first_sync_is_remembered_once_and_later_ones_by_service() {
        let mut contents = Contents::default();
        let mut sync = |changes: Vec<Change>, seconds| {
            let received = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            contents.apply(Programmed { changes, received, took: Duration::ZERO });
            let excerpt = contents.excerpt(&Selection::All);
            let of = |(name, last): &(ObjectName, LastChange)| {
                let since = last.received.duration_since(SystemTime::UNIX_EPOCH);
                (name.name.to_string(), since.unwrap_or_default().as_secs())
            };
            let times: Vec<(String, u64)> = excerpt.last_changes.iter().map(of).collect();
            (times, contents.last_changes.len())
        };
        let of = |n: u16, seconds| (service(n).name.name.to_string(), seconds);
        // The batches of one sync: the addresses of before, and the lists.
        sync(vec![Change::InterfaceAddresses(BTreeSet::new())], 1);
        sync(vec![Change::service(service(1)), Change::service(service(2))], 2);
        assert_eq!(sync(vec![Change::Synced], 3), (vec![of(1, 3), of(2, 3)], 0));
        let mut changed = service(2);
        changed.affinity_seconds = Some(5);
        assert_eq!(sync(vec![Change::service(changed)], 9), (vec![of(1, 3), of(2, 9)], 1));
        let gone = Change::ServiceGone(service(2).name);
        assert_eq!(sync(vec![gone], 12), (vec![of(1, 3)], 0));
    }
}
