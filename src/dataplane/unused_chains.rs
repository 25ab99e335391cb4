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

/// Chains that have been unused for long enough for a deletion.
pub(super) struct Due(Vec<(Family, ChainName)>);

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
    ) -> Option<Due> {
        let unused = record.unused_chains();
        self.0.retain(|chain, _| unused.contains(chain));
        for chain in unused {
            self.0.entry(chain).or_insert(now);
        }
        let is_due = |chain: ChainName, since: Instant| {
            now.checked_duration_since(since).is_some_and(|unused| unused >= keep(chain))
        };
        let due = self.0.iter().filter(|((_, chain), since)| is_due(*chain, **since));
        let due: Vec<(Family, ChainName)> = due.map(|(chain, _)| *chain).collect();
        (!due.is_empty()).then_some(Due(due))
    }

    /// Notes that the kernel has deleted the chains.
    pub(super) fn deleted(&mut self, due: Due, record: &mut KernelRecord) {
        for (family, name) in due.0 {
            record.ours_mut(family).and_then(|table| table.chains.remove(&name));
            self.0.remove(&(family, name));
        }
    }
}

impl Due {
    /// Returns the transaction that deletes the chains.
    pub(super) fn batch(&self) -> FinishedBatch {
        let mut batch = Batch::new(None);
        // Balancers with affinity refer to those without, and sort after them.
        for (family, name) in self.0.iter().rev() {
            batch.delete_chain(table_family(*family), TABLE, &name.to_string());
        }
        batch.finish()
    }
}
