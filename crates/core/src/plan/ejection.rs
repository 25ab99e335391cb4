//! The ejection of endpoints that do not answer: another backend of the pool takes their slot.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::{Backend, Protocol, Selection};

/// The TCP endpoints that do not answer, the ones known for longest first. Not a part of the
/// configuration: the agent finds them while it runs.
///
/// A pool without an answering backend stays as it is. Of other pools, the plan ejects at most a
/// third of the backends, but one of two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unresponsive(Arc<[SocketAddr]>);

/// Returns the number of backends of a pool that may be ejected at the same time.
#[must_use]
pub fn ejection_limit(backends: usize) -> usize {
    (backends / 3).max(usize::from(backends == 2))
}

impl Unresponsive {
    /// Returns true if all endpoints answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the endpoints as backends, the ones known for longest first.
    pub fn backends(&self) -> impl Iterator<Item = Backend> {
        self.0.iter().map(|endpoint| Backend { address: endpoint.ip(), port: endpoint.port() })
    }

    /// Returns true if the list has this endpoint.
    #[must_use]
    pub fn has(&self, backend: Backend) -> bool {
        self.backends().any(|other| other == backend)
    }

    /// Returns the endpoints to eject from a sorted pool, the ones known for longest first.
    #[must_use]
    pub fn ejected_from(&self, pool: &[Backend]) -> Vec<Backend> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut ejected: Vec<Backend> =
            self.backends().filter(|backend| pool.binary_search(backend).is_ok()).collect();
        if ejected.len() == pool.len() {
            // Dead backends look like a dead network.
            ejected.clear();
        }
        ejected.truncate(ejection_limit(pool.len()));
        ejected
    }

    /// Ejects endpoints from the pools of a service port. Returns the ejected ones, sorted. With the
    /// name of the agent's node, other backends take their places, and the pools keep their sizes.
    pub(super) fn eject(
        &self,
        selection: &mut Selection,
        protocol: Protocol,
        node: Option<&str>,
    ) -> Vec<Backend> {
        if self.is_empty() || protocol != Protocol::Tcp {
            return Vec::new();
        }
        let mut ejected = self.replace(&mut selection.cluster, node);
        ejected.extend(self.replace(&mut selection.local, node));
        ejected.sort_unstable();
        ejected.dedup();
        if !ejected.is_empty() {
            // The next SYN of a half-open connection is balanced anew.
            let stays = |backend: &&Backend| ejected.binary_search(backend).is_err();
            selection.serving = selection.serving.iter().filter(stays).copied().collect();
        }
        ejected
    }

    /// Removes the ejected endpoints from a pool. With the name of the agent's node, other backends
    /// replace them, and have several slots then: the length stays, so that only data of elements
    /// changes.
    fn replace(&self, pool: &mut Arc<[Backend]>, node: Option<&str>) -> Vec<Backend> {
        let ejected = self.ejected_from(pool);
        let Some(first) = ejected.first() else { return ejected };
        let mut replaced: Vec<Backend> =
            pool.iter().filter(|backend| !ejected.contains(backend)).copied().collect();
        if let Some(node) = node {
            let answers = |backend: &&Backend| !self.has(**backend);
            let others: Vec<Backend> = pool.iter().filter(answers).copied().collect();
            // Other nodes shall not choose the same one.
            let start = spread(*first, node) % others.len().max(1);
            replaced.extend(others.iter().cycle().skip(start).take(ejected.len()));
            replaced.sort_unstable();
        }
        *pool = replaced.into();
        ejected
    }
}

impl FromIterator<SocketAddr> for Unresponsive {
    fn from_iter<I: IntoIterator<Item = SocketAddr>>(endpoints: I) -> Unresponsive {
        Unresponsive(endpoints.into_iter().collect())
    }
}

/// Returns a number that depends on the endpoint and the node (FNV-1a).
fn spread(backend: Backend, node: &str) -> usize {
    let endpoint = SocketAddr::new(backend.address, backend.port).to_string();
    let hash = endpoint
        .bytes()
        .chain(node.bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn endpoint(n: u8) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(10, 244, 0, n).into(), 8080)
    }

    fn pool(numbers: impl IntoIterator<Item = u8>) -> Arc<[Backend]> {
        let backend = |n| Backend { address: endpoint(n).ip(), port: 8080 };
        numbers.into_iter().map(backend).collect()
    }

    fn unresponsive(numbers: &[u8]) -> Unresponsive {
        numbers.iter().map(|n| endpoint(*n)).collect()
    }

    #[test]
    fn at_most_a_third_and_never_the_last() {
        let limits: Vec<usize> = (0..10).map(ejection_limit).collect();
        assert_eq!(limits, [0, 0, 1, 1, 1, 1, 2, 2, 2, 3]);
        for (backends, silent, ejected) in [
            (&[1][..], &[1][..], &[][..]),
            (&[1, 2], &[2], &[2]),
            (&[1, 2], &[2, 1], &[]),
            (&[1, 2, 3], &[9], &[]),
            (&[1, 2, 3], &[3, 1], &[3]),
            (&[1, 2, 3], &[3, 1, 2], &[]),
            (&[1, 2, 3, 4, 5, 6], &[5, 1, 3], &[5, 1]),
        ] {
            let found = unresponsive(silent).ejected_from(&pool(backends.iter().copied()));
            assert_eq!(found, pool(ejected.iter().copied()).to_vec(), "{backends:?} {silent:?}");
        }
    }

    #[test]
    fn only_pools_of_tcp_eject() {
        for (protocol, count) in [(Protocol::Tcp, 1), (Protocol::Udp, 0), (Protocol::Sctp, 0)] {
            let all = pool([1, 2, 3]);
            let mut selection =
                Selection { cluster: all.clone(), serving: all.clone(), ..Selection::default() };
            let ejected = unresponsive(&[2]).eject(&mut selection, protocol, Some("node-1"));
            assert_eq!(ejected.len(), count);
            assert_eq!(selection.serving.len(), 3 - count);
        }
    }

    proptest! {
        #[test]
        fn a_pool_keeps_its_size_and_most_backends(
            backends in proptest::collection::btree_set(0_u8..20, 0..20),
            silent in proptest::collection::vec(0_u8..20, 0..20),
        ) {
            let silent: Vec<u8> = {
                let mut seen = BTreeSet::new();
                silent.into_iter().filter(|n| seen.insert(*n)).collect()
            };
            let before = pool(backends.iter().copied());
            let list = unresponsive(&silent);
            let mut after = before.clone();
            let ejected = list.replace(&mut after, Some("node-1"));
            prop_assert_eq!(before.len(), after.len());
            prop_assert!(after.is_sorted());
            prop_assert!(ejected.len() <= ejection_limit(before.len()));
            prop_assert!(before.is_empty() || ejected.len() < before.len());
            prop_assert!(after.iter().all(|backend| before.contains(backend)));
            for backend in before.iter() {
                prop_assert_eq!(after.contains(backend), !ejected.contains(backend));
                // A backend that answers is never ejected.
                prop_assert!(list.has(*backend) || after.contains(backend));
            }
            if before.iter().all(|backend| list.has(*backend)) {
                prop_assert_eq!(&before, &after);
            }
        }
    }
}
