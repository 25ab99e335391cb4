//! Deletes unused on-demand chains.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nfnetlink::nft::{Batch, FinishedBatch};
use shunt_core::model::Family;
use shunt_core::plan::{ChainName, TABLE};

use super::codec::table_family;
use super::record::KernelRecord;

/// The unused chains, and the times since when they are unused.
#[derive(Debug, Default)]
pub(super) struct UnusedChains(BTreeMap<(Family, ChainName), Instant>);

impl UnusedChains {
    /// Returns true if none is noted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the unused chains. Returns those that have been unused for longer than their time.
    pub(super) fn due(
        &mut self,
        record: &KernelRecord,
        now: Instant,
        keep: impl Fn(ChainName) -> Duration,
    ) -> Vec<(Family, ChainName)> {
        let unused = record.unused_chains();
        self.0.retain(|chain, _| unused.contains(chain));
        for chain in unused {
            self.0.entry(chain).or_insert(now);
        }
        let is_due = |chain: ChainName, since: Instant| {
            now.checked_duration_since(since).is_some_and(|unused| unused >= keep(chain))
        };
        let due = self.0.iter().filter(|((_, chain), since)| is_due(*chain, **since));
        due.map(|(chain, _)| *chain).collect()
    }

    /// Notes that the kernel has deleted the chains.
    pub(super) fn deleted(&mut self, due: Vec<(Family, ChainName)>, record: &mut KernelRecord) {
        for (family, name) in due {
            record.ours_mut(family).and_then(|table| table.chains.remove(&name));
            self.0.remove(&(family, name));
        }
    }
}

/// Returns the transaction that deletes chains, in order.
pub(super) fn deletion(chains: &[(Family, ChainName)]) -> FinishedBatch {
    let mut batch = Batch::new(None);
    // Balancers with affinity refer to those without, and sort after them.
    for (family, name) in chains.iter().rev() {
        batch.delete_chain(table_family(*family), TABLE, &name.to_string());
    }
    batch.finish()
}
