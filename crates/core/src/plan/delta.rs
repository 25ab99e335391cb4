//! The parts of the plan in which the kernel can differ from it.

use super::{FrontendKey, SetMember};

/// The changed parts of the plan since the last delta. The kernel can differ from the plan only
/// there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanDelta {
    pub(super) frontends: Vec<FrontendKey>,
    pub(super) members: Vec<SetMember>,
    /// True if chains or their rules may differ.
    pub chains: bool,
}

impl PlanDelta {
    /// Makes a delta of these parts; sorts them and removes duplicates.
    #[must_use]
    pub fn new(frontends: Vec<FrontendKey>, members: Vec<SetMember>, chains: bool) -> PlanDelta {
        let mut touched = PlanDelta { frontends, members, chains };
        touched.sort();
        touched
    }

    pub(super) fn sort(&mut self) {
        // A stable sort is faster on sorted parts.
        self.frontends.sort();
        self.frontends.dedup();
        self.members.sort();
        self.members.dedup();
    }

    /// Returns true if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.members.is_empty() && !self.chains
    }

    /// Merges another delta into this one.
    pub fn merge(&mut self, mut other: PlanDelta) {
        if self.frontends.is_empty() && self.members.is_empty() {
            std::mem::swap(self, &mut other);
        }
        self.chains |= other.chains;
        if !(other.frontends.is_empty() && other.members.is_empty()) {
            self.frontends.extend(other.frontends);
            self.members.extend(other.members);
            self.sort();
        }
    }

    /// Returns the new, changed and removed frontends, sorted, without duplicates.
    #[must_use]
    pub fn frontends(&self) -> &[FrontendKey] {
        &self.frontends
    }

    /// Returns the new and removed members of the plain sets, sorted, without duplicates.
    #[must_use]
    pub fn members(&self) -> &[SetMember] {
        &self.members
    }

    /// Returns true if the delta has that frontend.
    #[must_use]
    pub fn has_frontend(&self, key: FrontendKey) -> bool {
        self.frontends.binary_search(&key).is_ok()
    }

    /// Returns true if the delta has that member.
    #[must_use]
    pub fn has_member(&self, member: SetMember) -> bool {
        self.members.binary_search(&member).is_ok()
    }
}
