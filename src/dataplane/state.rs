//! The dataplane's knowledge of the kernel.

use std::borrow::Cow;

use nfnetlink::nft::Elements;
use shunt_core::model::Family;
use shunt_core::plan::{Desired, PlanDelta};

use super::diff::Stale;
use super::reading::Reading;
use super::record::KernelRecord;

/// The dataplane's knowledge of the kernel.
#[derive(Default)]
pub(super) enum State {
    /// Nothing is known, or nothing that was ever equal to the plan.
    #[default]
    Unread,
    /// The record is invalid: another process may have modified the tables, or the result of a
    /// transaction is unknown. The changes of the plan since then are kept, to distinguish them
    /// from damage.
    Lost(PlanDelta),
    /// The record is valid.
    Current(Box<Current>),
}

/// The record, with its possible differences from the plan.
pub(super) struct Current {
    /// The generation of the record, as long as no other process has committed. Commits do not
    /// depend on the generation.
    pub(super) generation: u32,
    pub(super) record: KernelRecord,
    pub(super) difference: Difference,
    /// Affinity entries that may be stale beside those of the difference.
    pub(super) stale: Stale,
    /// The affinity entries of tables that must be replaced.
    pub(super) moved_affinity: Vec<(Family, Elements)>,
}

/// The possible differences between record and plan.
pub(super) enum Difference {
    /// The changes of the plan since the last commit.
    Planned(PlanDelta),
    /// Unknown: the kernel was read for the first time.
    Anywhere,
    /// Unknown: the kernel was read again. Only these differences are changes of the plan.
    Reread(PlanDelta),
}

impl State {
    pub(super) fn current(&self) -> Option<&Current> {
        match self {
            State::Current(current) => Some(current),
            State::Unread | State::Lost(_) => None,
        }
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut Current> {
        match self {
            State::Current(current) => Some(current),
            State::Unread | State::Lost(_) => None,
        }
    }

    /// Notes changes of the plan.
    pub(super) fn planned(&mut self, touched: PlanDelta) {
        match self {
            // The next sync compares the whole plan.
            State::Unread => {}
            State::Lost(planned) => planned.merge(touched),
            State::Current(current) => match &mut current.difference {
                Difference::Anywhere => {}
                Difference::Planned(planned) | Difference::Reread(planned) => {
                    planned.merge(touched);
                }
            },
        }
    }

    /// Invalidates the record: the kernel must be read before the next commit.
    pub(super) fn lose(&mut self) {
        *self = match std::mem::take(self) {
            State::Current(current) => match current.difference {
                Difference::Anywhere => State::Unread,
                Difference::Planned(planned) | Difference::Reread(planned) => State::Lost(planned),
            },
            other => other,
        };
    }

    /// Sets the record from a reading, for a comparison with the whole plan, and the affinity
    /// entries of tables that must be replaced.
    pub(super) fn read(&mut self, reading: Reading, moved_affinity: Vec<(Family, Elements)>) {
        self.lose();
        let difference = match std::mem::take(self) {
            State::Lost(planned) => Difference::Reread(planned),
            _ => Difference::Anywhere,
        };
        *self = State::Current(Box::new(Current {
            generation: reading.generation,
            record: reading.record,
            difference,
            stale: Stale::everywhere(),
            moved_affinity,
        }));
    }
}

impl Current {
    /// Returns the delta to compare.
    pub(super) fn compared(&self, desired: &Desired) -> Cow<'_, PlanDelta> {
        match &self.difference {
            Difference::Planned(planned) => Cow::Borrowed(planned),
            Difference::Anywhere | Difference::Reread(_) => {
                let mut all = desired.everything();
                all.merge(self.record.everything());
                Cow::Owned(all)
            }
        }
    }

    /// Notes that the next transaction makes the sets of a table anew. `stale` are the affinity entries
    /// that it would have made stale.
    pub(super) fn rebuild_table(&mut self, family: Family, stale: &Stale) {
        self.record.rebuild_table(family);
        self.difference = Difference::Anywhere;
        self.stale.merge(stale);
    }

    /// Notes that the kernel holds the plan; without base chains before the first sync.
    pub(super) fn settled(&mut self, has_base_chains: bool) {
        let planned = PlanDelta::new(Vec::new(), Vec::new(), !has_base_chains);
        self.difference = Difference::Planned(planned);
        self.stale = Stale::default();
    }

    /// Notes a commit of this agent: the kernel increments the generation and skips 0
    /// (`nf_tables_commit`).
    pub(super) fn advance(&mut self) {
        self.generation = self.generation.wrapping_add(1).max(1);
    }
}
