//! New connections per Service port, for metrics, from the counters of frontends in the kernel.
//!
//! Owns: a socket of its own, so that no commit waits, and the sums of the Service ports. These never
//! decrease, although the kernel's counters can start anew and frontends come and go.
//!
//! Must not know: names and formats of metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use nfnetlink::nft::{DumpedElement, Error, Kernel, Socket};
use shunt_core::model::Protocol;
use shunt_core::plan::{FrontendKey, Pools};

use crate::dataplane::{both_pools, list_verdicts, look_up_verdicts};
use crate::serve::metrics::ServiceConnections;

/// The age up to which a reading is used again, for several clients that scrape.
const FRESH: Duration = Duration::from_secs(1);

/// The new connections of all Service ports.
pub struct ServiceCounters {
    kernel: Box<dyn Kernel>,
    /// The maximum number of Service ports.
    limit: usize,
    /// The Service ports by label, `namespace/name:port`.
    ports: BTreeMap<Arc<str>, Port>,
    /// The elements of the last reading.
    frontends: HashMap<FrontendKey, Counted>,
    omitted: usize,
    /// The counters have been read once, from which on connections count.
    has_baseline: bool,
    read_at: Option<Instant>,
    /// The log has these already.
    logged: Logged,
}

#[derive(Default)]
struct Logged {
    omitted: bool,
    failure: bool,
}

#[derive(Debug)]
struct Port {
    protocol: Protocol,
    total: u64,
}

/// The counters of a frontend, by the map of its verdict and that of its short circuit.
#[derive(Debug, Clone)]
struct Counted {
    label: Arc<str>,
    counts: [Option<u64>; 2],
}

impl Counted {
    fn sum(&self) -> u64 {
        self.counts.iter().flatten().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the new connections since an earlier reading.
    fn since(&self, before: Option<&Counted>) -> u64 {
        let before = before.filter(|before| before.label == self.label).map_or(0, Counted::sum);
        let now = self.sum();
        match now.checked_sub(before) {
            Some(new) => new,
            // A counter continues without the connections between the reading of the old element and
            // the commit of the new one. These have been counted here.
            None if now >= before / 2 => 0,
            // The counter started anew.
            None => now,
        }
    }
}

impl ServiceCounters {
    /// Opens nf_tables in the network namespace of this thread, and reads the counters for the first
    /// time: the connections of earlier agents do not count.
    ///
    /// # Errors
    /// If the kernel has no nf_tables.
    pub fn open(limit: usize) -> Result<ServiceCounters, Error> {
        Ok(ServiceCounters::with_kernel(Box::new(Socket::open()?), limit))
    }

    fn with_kernel(kernel: Box<dyn Kernel>, limit: usize) -> ServiceCounters {
        let mut counters = ServiceCounters {
            kernel,
            limit,
            ports: BTreeMap::new(),
            frontends: HashMap::default(),
            omitted: 0,
            has_baseline: false,
            read_at: None,
            logged: Logged::default(),
        };
        counters.refresh(Instant::now());
        // The next scrape reads again.
        counters.read_at = None;
        counters
    }

    /// Returns the numbers, or `None` if the kernel cannot be read.
    pub fn read(&mut self) -> Option<ServiceConnections> {
        let is_read = self.refresh(Instant::now());
        let ports = self.ports.iter();
        let ports =
            ports.map(|(label, Port { protocol, total })| (label.clone(), *protocol, *total));
        is_read.then(|| ServiceConnections { ports: ports.collect(), omitted: self.omitted })
    }

    /// Reads the kernel unless the last reading is fresh. Returns false if the kernel cannot be read.
    fn refresh(&mut self, now: Instant) -> bool {
        if self.read_at.is_some_and(|at| now.saturating_duration_since(at) < FRESH) {
            return true;
        }
        self.read_at = None;
        if let Err(error) = self.update() {
            if !std::mem::replace(&mut self.logged.failure, true) {
                tracing::warn!(%error, "cannot read the counters of Services for metrics");
            }
            return false;
        }
        self.logged.failure = false;
        self.read_at = Some(now);
        if self.omitted > 0 && !std::mem::replace(&mut self.logged.omitted, true) {
            tracing::warn!(
                limit = self.limit,
                omitted = self.omitted,
                "more Service ports than --service-metrics-limit; the others have no metrics of \
                 their own"
            );
        }
        true
    }

    /// Reads all counters, and adds what is new to the sums.
    fn update(&mut self) -> Result<(), Error> {
        let ServiceCounters { kernel, ports, .. } = self;
        let mut reading = Reading::default();
        list_verdicts(&mut **kernel, &mut |key, pools, it| reading.note(ports, key, pools, it))?;
        // While the kernel resizes a map, a listing lacks elements.
        let missing = reading.missing(&self.frontends);
        look_up_verdicts(&mut **kernel, &missing, &mut |key, pools, it| {
            reading.note(ports, key, pools, it);
        })?;

        let Reading { labels, mut frontends } = reading;
        ports.retain(|label, _| labels.contains_key(label));
        for (label, protocol) in &labels {
            if ports.len() >= self.limit {
                break;
            }
            let new = || Port { protocol: *protocol, total: 0 };
            ports.entry(label.clone()).or_insert_with(new);
        }
        self.omitted = labels.len() - ports.len();
        frontends.retain(|key, counted| {
            let Some(port) = ports.get_mut(&counted.label) else { return false };
            let new = counted.since(self.frontends.get(key));
            port.total = port.total.saturating_add(new);
            true
        });
        self.frontends = frontends;
        if !std::mem::replace(&mut self.has_baseline, true) {
            ports.values_mut().for_each(|port| port.total = 0);
        }
        Ok(())
    }
}

/// One reading of all counters.
#[derive(Default)]
struct Reading {
    labels: BTreeMap<Arc<str>, Protocol>,
    frontends: HashMap<FrontendKey, Counted>,
}

impl Reading {
    fn note(
        &mut self,
        ports: &BTreeMap<Arc<str>, Port>,
        key: FrontendKey,
        pools: Pools,
        element: &DumpedElement<'_>,
    ) {
        let (Some(label), Some(counter)) = (element.comment, element.counter) else { return };
        let known = ports.get_key_value(label).map(|(label, _)| label);
        let known = known.or_else(|| self.labels.get_key_value(label).map(|(label, _)| label));
        let label = known.cloned().unwrap_or_else(|| label.into());
        self.labels.entry(label.clone()).or_insert(key.protocol());
        let frontend = self.frontends.entry(key);
        let counted = frontend.or_insert_with(|| Counted { label, counts: [None; 2] });
        counted.counts[usize::from(pools.is_short_circuit())] = Some(counter.packets);
    }

    /// Returns the elements of an earlier reading that this one lacks.
    fn missing(&self, before: &HashMap<FrontendKey, Counted>) -> Vec<(FrontendKey, Pools)> {
        let mut missing = Vec::new();
        for (key, before) in before {
            let counts = self.frontends.get(key).map_or([None; 2], |now| now.counts);
            for ((element, before), now) in
                both_pools(*key).into_iter().zip(before.counts).zip(counts)
            {
                if before.is_some() && now.is_none() {
                    missing.push(element);
                }
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests;
