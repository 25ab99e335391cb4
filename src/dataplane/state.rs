//! What the dataplane knows of the kernel.

use std::borrow::Cow;

use nfnetlink::nft::Elements;
use shunt_core::model::Family;
use shunt_core::plan::{Desired, PlanDelta};

use super::diff::Stale;
use super::reading::Reading;
use super::record::KernelRecord;

/// What the dataplane knows of the kernel.
#[derive(Default)]
pub(super) enum State {
    /// Nothing, or nothing that was ever equal to the plan.
    #[default]
    Unread,
    /// Nothing any more: another process may have changed the tables, or a transaction ended in doubt.
    /// What the plan has changed since the kernel held it is kept, to tell it from damage.
    Lost(PlanDelta),
    /// What it holds.
    Current(Box<Current>),
}

/// What the kernel holds, and what may differ from the plan.
pub(super) struct Current {
    /// The generation of the record, as long as no other process has committed. Commits do not depend on
    /// it.
    pub(super) generation: u32,
    pub(super) record: KernelRecord,
    pub(super) difference: Difference,
    /// Where entries of session affinity may be stale, besides where the difference says.
    pub(super) stale: Stale,
    /// The entries of session affinity of tables that have to be replaced.
    pub(super) moved_affinity: Vec<(Family, Elements)>,
}

/// Where the record may differ from the plan.
pub(super) enum Difference {
    /// Where the plan changed since the last commit.
    Planned(PlanDelta),
    /// Anywhere: the kernel was read for the first time.
    Anywhere,
    /// Anywhere: the kernel was read again. The plan changed only this.
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

    /// Notes where the plan changed.
    pub(super) fn planned(&mut self, touched: PlanDelta) {
        match self {
            // All of the plan will be compared.
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

    /// Forgets the record: the kernel has to be read before the next commit.
    pub(super) fn lose(&mut self) {
        *self = match std::mem::take(self) {
            State::Current(current) => match current.difference {
                Difference::Anywhere => State::Unread,
                Difference::Planned(planned) | Difference::Reread(planned) => State::Lost(planned),
            },
            other => other,
        };
    }

    /// Takes in what was read, to be compared with all of the plan, and the entries of session affinity of
    /// tables that have to be replaced.
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
    /// What has to be compared.
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

    /// The kernel holds what is planned.
    pub(super) fn settled(&mut self) {
        self.difference = Difference::Planned(PlanDelta::default());
        self.stale = Stale::default();
    }

    /// A transaction of ours was committed. The kernel counts one up and leaves out 0
    /// (`nf_tables_commit`).
    pub(super) fn advance(&mut self) {
        self.generation = self.generation.wrapping_add(1).max(1);
    }
}
