//! Where the plan changed.

use super::{FrontendKey, SetMember};

/// Where the plan changed since it was last asked: only there can the kernel differ from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanDelta {
    frontends: Vec<FrontendKey>,
    members: Vec<SetMember>,
    /// The chains may be different.
    pub chains: bool,
}

impl PlanDelta {
    /// Of these, in whatever order.
    #[must_use]
    pub fn new(frontends: Vec<FrontendKey>, members: Vec<SetMember>, chains: bool) -> PlanDelta {
        let mut touched = PlanDelta { frontends, members, chains };
        touched.sort();
        touched
    }

    fn sort(&mut self) {
        // Stable, since that makes use of parts that are in order.
        self.frontends.sort();
        self.frontends.dedup();
        self.members.sort();
        self.members.dedup();
    }

    /// True if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.members.is_empty() && !self.chains
    }

    /// Adds what another one names.
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

    /// Frontends that are new, different or gone, in order, each once.
    #[must_use]
    pub fn frontends(&self) -> &[FrontendKey] {
        &self.frontends
    }

    /// Members of the plain sets that are new or gone, in order, each once.
    #[must_use]
    pub fn members(&self) -> &[SetMember] {
        &self.members
    }

    /// True if it names that frontend.
    #[must_use]
    pub fn has_frontend(&self, key: FrontendKey) -> bool {
        self.frontends.binary_search(&key).is_ok()
    }

    /// True if it names that member.
    #[must_use]
    pub fn has_member(&self, member: SetMember) -> bool {
        self.members.binary_search(&member).is_ok()
    }
}
