//! New connections per Service port, for metrics, from the counters of frontends in the kernel.
//!
//! Owns: a socket of its own, so that no commit waits, and the sums of the Service ports. These never
//! decrease, although the kernel's counters can start anew and frontends come and go.
//!
//! Must not know: names and formats of metrics.

use std::collections::BTreeMap;

use nfnetlink::nft::{Error, Kernel, Socket};
use shunt_core::model::Protocol;
use shunt_core::plan::FrontendKey;

use crate::dataplane::{FrontendVerdict, Installed, Verdicts, add_verdicts, verdicts};
use crate::serve::metrics::ServiceConnections;
use crate::serve::time::Seldom;

/// About counters that cannot be read.
static FAILED: Seldom = Seldom::new();

/// The new connections of all Service ports.
pub struct ServiceCounters {
    kernel: Box<dyn Kernel>,
    /// The maximum number of Service ports.
    limit: usize,
    /// The Service ports by label, `namespace/name:port`, with the sums.
    ports: BTreeMap<Box<str>, (Protocol, u64)>,
    /// The last reading.
    frontends: Verdicts,
    omitted: usize,
}

/// Returns the new connections since an earlier reading.
fn since(now: &FrontendVerdict, before: Option<&FrontendVerdict>) -> u64 {
    let before = before.filter(|before| before.label == now.label);
    let (now, before) = (now.connections(), before.map_or(0, FrontendVerdict::connections));
    match now.checked_sub(before) {
        Some(new) => new,
        // A counter continues without the connections between the reading of the old element and
        // the commit of the new one. These have been counted here.
        None if now >= before / 2 => 0,
        // The counter started anew.
        None => now,
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
            frontends: Verdicts::default(),
            omitted: 0,
        };
        counters.read();
        counters.ports.values_mut().for_each(|(_, total)| *total = 0);
        counters
    }

    /// Returns the numbers, or `None` if the kernel cannot be read.
    pub fn read(&mut self) -> Option<ServiceConnections> {
        if let Err(error) = self.update() {
            if FAILED.may() {
                tracing::warn!(%error, "cannot read the counters of Services for metrics");
            }
            return None;
        }
        let ports = self.ports.iter();
        let ports = ports.map(|(label, (protocol, total))| (label.clone(), *protocol, *total));
        Some(ServiceConnections { ports: ports.collect(), omitted: self.omitted })
    }

    /// Reads all counters, and adds what is new to the sums.
    fn update(&mut self) -> Result<(), Error> {
        let ServiceCounters { kernel, ports, frontends, .. } = self;
        let mut found = verdicts(&mut **kernel)?;
        // While the kernel resizes a map, a listing lacks elements.
        let lacks = |(key, before): &(&FrontendKey, &FrontendVerdict)| {
            let lost = |before: &Installed, now: &Installed| before.exists && !now.exists;
            found.get(key).is_none_or(|now| {
                lost(&before.main, &now.main) || lost(&before.short_circuit, &now.short_circuit)
            })
        };
        let missing: Vec<_> = frontends.iter().filter(lacks).map(|(key, _)| *key).collect();
        add_verdicts(&mut **kernel, &missing, &mut found)?;

        let labels = found.iter().map(|(key, it)| (it.label.clone(), key.protocol()));
        let labels: BTreeMap<Box<str>, Protocol> = labels.collect();
        ports.retain(|label, _| labels.contains_key(label));
        self.omitted = labels.len();
        for (label, protocol) in labels {
            if ports.len() >= self.limit {
                break;
            }
            ports.entry(label).or_insert((protocol, 0));
        }
        self.omitted -= ports.len();
        found.retain(|key, now| {
            let Some((_, total)) = ports.get_mut(&now.label) else { return false };
            *total = total.saturating_add(since(now, frontends.get(key)));
            true
        });
        *frontends = found;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
