//! The parts of the plan in which the kernel can differ from it.

use std::collections::BTreeSet;

use super::{FrontendKey, SetMember};

/// The changed parts of the plan since the last delta. The kernel can differ from the plan only
/// there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanDelta {
    /// The new, changed and removed frontends.
    pub frontends: BTreeSet<FrontendKey>,
    /// The new and removed members of the plain sets.
    pub members: BTreeSet<SetMember>,
    /// True if chains or their rules may differ.
    pub chains: bool,
}

impl PlanDelta {
    /// Returns true if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.members.is_empty() && !self.chains
    }

    /// Merges another delta into this one.
    pub fn merge(&mut self, mut other: PlanDelta) {
        self.frontends.append(&mut other.frontends);
        self.members.append(&mut other.members);
        self.chains |= other.chains;
    }
}
