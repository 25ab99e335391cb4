//! The choice of an endpoint for a connection. The time is an argument.

use std::time::{Duration, Instant};

use shunt_core::model::{Backend, ObjectName};
use shunt_core::plan::LoopbackPort;

/// The endpoints of a node port, and the endpoint that session affinity keeps. All connections come
/// from one address, the loopback address, so there is one entry.
#[derive(Debug)]
pub(super) struct Balancer {
    port: LoopbackPort,
    last: Option<(Backend, Instant)>,
}

impl Balancer {
    pub(super) fn new(port: LoopbackPort) -> Balancer {
        Balancer { port, last: None }
    }

    pub(super) fn service(&self) -> &ObjectName {
        &self.port.service
    }

    /// Replaces the endpoints. Returns false if another Service has the port.
    pub(super) fn update(&mut self, port: &LoopbackPort) -> bool {
        let is_same = self.port.service == port.service;
        if is_same {
            self.last.take_if(|_| port.affinity.is_none());
            self.port = port.clone();
        }
        is_same
    }

    /// Chooses the endpoint of a new connection: with session affinity the last one, as long as the
    /// pool has it and the timeout is not over. `fraction` is a random number from 0 to 1.
    pub(super) fn choose(&mut self, now: Instant, fraction: f64) -> Option<Backend> {
        let LoopbackPort { pool, affinity, .. } = &self.port;
        let timeout = affinity.map(|seconds| Duration::from_secs(seconds.into()));
        let is_kept = |(backend, at): &(Backend, Instant)| {
            timeout.is_some_and(|timeout| now.saturating_duration_since(*at) <= timeout)
                && pool.contains(backend)
        };
        let random = (fraction * pool.len() as f64) as usize;
        let backend = match self.last.filter(is_kept) {
            Some((backend, _)) => backend,
            None => *pool.get(random).or(pool.last())?,
        };
        self.last = timeout.map(|_| (backend, now));
        Some(backend)
    }

    /// Forgets the endpoint that did not accept a connection, so that the next one may get another.
    pub(super) fn failed(&mut self, backend: Backend) {
        self.last.take_if(|(last, _)| *last == backend);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn backend(n: u8) -> Backend {
        Backend { address: [10, 244, 0, n].into(), port: 8080 }
    }

    fn port(numbers: &[u8], affinity: Option<u32>) -> LoopbackPort {
        let pool = numbers.iter().map(|n| backend(*n)).collect();
        LoopbackPort { service: ObjectName::new("shop", "web"), pool, affinity }
    }

    fn balancer(numbers: &[u8], affinity: Option<u32>) -> Balancer {
        Balancer::new(port(numbers, affinity))
    }

    #[test]
    fn endpoints_have_equal_probabilities() {
        let mut balancer = balancer(&[1, 2, 3], None);
        let now = Instant::now();
        let mut counts: BTreeMap<Backend, usize> = BTreeMap::new();
        for n in 0..300 {
            let chosen = balancer.choose(now, f64::from(n) / 300.0).expect("an endpoint");
            *counts.entry(chosen).or_default() += 1;
        }
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [100, 100, 100]);
        assert_eq!(balancer.choose(now, 1.0), Some(backend(3)));
    }

    #[test]
    fn affinity_lasts_for_its_timeout_after_the_last_connection() {
        let mut balancer = balancer(&[1, 2], Some(10));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(balancer.choose(at(0), 0.0), Some(backend(1)));
        assert_eq!(balancer.choose(at(10), 0.9), Some(backend(1)));
        assert_eq!(balancer.choose(at(20), 0.9), Some(backend(1)), "each connection renews it");
        assert_eq!(balancer.choose(at(31), 0.9), Some(backend(2)));
    }

    #[test]
    fn affinity_outlives_changes_of_other_endpoints() {
        let mut balancer = balancer(&[1, 2], Some(10));
        let now = Instant::now();
        assert_eq!(balancer.choose(now, 0.0), Some(backend(1)));
        balancer.update(&port(&[1, 3, 4], Some(60)));
        assert_eq!(balancer.choose(now, 0.9), Some(backend(1)));
        balancer.update(&port(&[3, 4], Some(60)));
        assert_eq!(balancer.choose(now, 0.9), Some(backend(4)));
        balancer.update(&port(&[3, 4], None));
        assert_eq!(balancer.choose(now, 0.0), Some(backend(3)));
        balancer.update(&port(&[3, 4], Some(60)));
        assert_eq!(balancer.choose(now, 0.9), Some(backend(4)), "affinity was off meanwhile");
    }

    #[test]
    fn failed_connection_ends_affinity_to_its_endpoint_only() {
        let mut balancer = balancer(&[1, 2], Some(10));
        let now = Instant::now();
        assert_eq!(balancer.choose(now, 0.0), Some(backend(1)));
        balancer.failed(backend(2));
        assert_eq!(balancer.choose(now, 0.9), Some(backend(1)));
        balancer.failed(backend(1));
        assert_eq!(balancer.choose(now, 0.9), Some(backend(2)));
    }
}
