//! The dataplane's knowledge of the kernel.

use std::borrow::Cow;

use shunt_core::model::Family;
use shunt_core::plan::{Desired, PlanDelta};

use super::diff::Stale;
use super::reading::Reading;
use super::record::KernelRecord;

/// The dataplane's knowledge of the kernel.
pub(super) enum State {
    /// There is no record, or it is invalid: another process may have modified the tables, or the
    /// result of a transaction is unknown.
    Lost(Difference),
    /// The record is valid.
    Current(Box<Current>),
}

impl Default for State {
    fn default() -> State {
        State::Lost(Difference::Anywhere)
    }
}

/// The record, with its possible differences from the plan.
pub(super) struct Current {
    /// The generation of the record, as long as no other process has committed. Commits do not
    /// depend on the generation.
    pub(super) generation: u32,
    pub(super) record: KernelRecord,
    pub(super) difference: Difference,
    /// Affinity entries that the difference would have made stale, if the record still had them.
    pub(super) stale: Stale,
}

/// The possible differences between kernel and plan.
#[derive(Default)]
pub(super) enum Difference {
    /// Unknown: the kernel was never read before.
    #[default]
    Anywhere,
    /// The changes of the plan since the last commit.
    Planned(PlanDelta),
    /// Unknown: the kernel must be or was read again. Only these differences are changes of the plan,
    /// the others are damage.
    Reread(PlanDelta),
}

impl State {
    pub(super) fn current(&self) -> Option<&Current> {
        match self {
            State::Current(current) => Some(current),
            State::Lost(_) => None,
        }
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut Current> {
        match self {
            State::Current(current) => Some(current),
            State::Lost(_) => None,
        }
    }

    fn difference(&mut self) -> &mut Difference {
        match self {
            State::Lost(difference) => difference,
            State::Current(current) => &mut current.difference,
        }
    }

    /// Notes changes of the plan.
    pub(super) fn planned(&mut self, touched: PlanDelta) {
        if let Difference::Planned(planned) | Difference::Reread(planned) = self.difference() {
            planned.merge(touched);
        }
    }

    /// Invalidates the record: the kernel must be read before the next commit.
    pub(super) fn lose(&mut self) {
        *self = State::Lost(match std::mem::take(self.difference()) {
            Difference::Planned(planned) => Difference::Reread(planned),
            other => other,
        });
    }

    /// Sets the record from a reading, for a comparison with the whole plan.
    pub(super) fn read(&mut self, reading: Reading) {
        self.lose();
        *self = State::Current(Box::new(Current {
            generation: reading.generation,
            record: reading.record,
            difference: std::mem::take(self.difference()),
            stale: Stale::default(),
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
        let planned = PlanDelta { chains: !has_base_chains, ..PlanDelta::default() };
        self.difference = Difference::Planned(planned);
        self.stale = Stale::default();
    }

    /// Notes a commit of this agent: the kernel increments the generation and skips 0
    /// (`nf_tables_commit`).
    pub(super) fn advance(&mut self) {
        self.generation = self.generation.wrapping_add(1).max(1);
    }
}
