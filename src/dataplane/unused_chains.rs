//! Chains on demand that no frontend needs any more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nfnetlink::nft::{Batch, FinishedBatch};
use shunt_core::model::Family;
use shunt_core::plan::{ChainName, TABLE};

use super::codec::table_family;
use super::record::KernelRecord;

/// Unused chains, and since when.
#[derive(Debug, Default)]
pub(super) struct UnusedChains(BTreeMap<(Family, ChainName), Instant>);

/// Chains that have been unused for long enough.
pub(super) struct Due(Vec<(Family, ChainName)>);

impl UnusedChains {
    /// Notes which chains are unused now. Returns those that have been for as long as they are kept.
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

    /// The kernel has deleted them.
    pub(super) fn deleted(&mut self, due: Due, record: &mut KernelRecord) {
        for (family, name) in due.0 {
            record.set_chain(family, name, None);
            self.0.remove(&(family, name));
        }
    }
}

impl Due {
    /// The transaction that deletes them.
    pub(super) fn batch(&self) -> FinishedBatch {
        let mut batch = Batch::new(None);
        // Balancers with affinity come behind those without, which they refer to.
        for (family, name) in self.0.iter().rev() {
            batch.delete_chain(table_family(*family), TABLE, &name.to_string());
        }
        batch.finish()
    }
}
