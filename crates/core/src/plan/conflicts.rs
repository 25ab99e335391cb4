//! The resolution of conflicts between Services that claim the same frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use indexmap::map::Entry;

use super::{FrontendKey, FrontendKind};
use crate::model::{ArrivalMap, ObjectName};

/// The precedence of a Service in a conflict: by kind, then by age, then by name.
///
/// Kind comes first so that no Service takes another one's ClusterIP through `externalIPs`
/// (CVE-2020-8554). The order of events has no influence, so every node and every restart decides
/// the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    pub(super) kind: FrontendKind,
    /// The creation time in seconds since 1970; a Service without one counts as the youngest.
    pub(super) created: i64,
    pub(super) service: ObjectName,
}

/// A conflict: two Services claim one frontend, and one of them owns it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The claimed frontend.
    pub frontend: FrontendKey,
    /// The Service that owns the frontend.
    pub winner: ObjectName,
    /// The Service that claims the frontend and does not own it.
    pub loser: ObjectName,
    /// The rule that decided the conflict.
    pub reason: ConflictReason,
}

/// The rule that decided a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictReason {
    /// The winner's kind of frontend takes precedence.
    Kind {
        /// The kind of the winner's frontend.
        winner: FrontendKind,
        /// The kind of the loser's frontend.
        loser: FrontendKind,
    },
    /// The winner is older.
    Age,
    /// Neither Service is older; the winner comes first by namespace and name.
    Name,
}

impl ConflictReason {
    fn between(winner: &Precedence, loser: &Precedence) -> ConflictReason {
        if winner.kind != loser.kind {
            ConflictReason::Kind { winner: winner.kind, loser: loser.kind }
        } else if winner.created != loser.created {
            ConflictReason::Age
        } else {
            ConflictReason::Name
        }
    }
}

impl fmt::Display for ConflictReason {
    /// Writes why the winner gets the frontend.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictReason::Kind { winner, loser } => {
                write!(f, "{winner}s always take precedence over {loser}s")
            }
            ConflictReason::Age => f.write_str("the older Service wins"),
            ConflictReason::Name => {
                f.write_str("both Services are equally old, and the first one by name wins")
            }
        }
    }
}

/// The claims to all frontends, of which nearly all have a single claim.
#[derive(Debug, Default)]
pub(super) struct Claims {
    first: ArrivalMap<FrontendKey, Precedence>,
    /// The claims after the first, if there are any.
    others: BTreeMap<FrontendKey, BTreeSet<Precedence>>,
}

impl Claims {
    /// Reserves capacity for more frontends.
    pub(super) fn reserve(&mut self, more: usize) {
        self.first.reserve_exact(more);
    }

    pub(super) fn add(&mut self, key: FrontendKey, claim: Precedence) {
        let later = match self.first.entry(key) {
            Entry::Vacant(place) => {
                place.insert(claim);
                return;
            }
            Entry::Occupied(first) if *first.get() == claim => return,
            Entry::Occupied(first) if *first.get() < claim => claim,
            Entry::Occupied(mut first) => first.insert(claim),
        };
        self.others.entry(key).or_default().insert(later);
    }

    pub(super) fn remove(&mut self, key: FrontendKey, claim: &Precedence) {
        let mut others = self.others.remove(&key).unwrap_or_default();
        if self.first.get(&key) == Some(claim) {
            match others.pop_first() {
                Some(next) => self.first.insert(key, next),
                None => self.first.swap_remove(&key),
            };
        } else {
            others.remove(claim);
        }
        if !others.is_empty() {
            self.others.insert(key, others);
        }
    }

    pub(super) fn winner(&self, key: FrontendKey) -> Option<&ObjectName> {
        self.first.get(&key).map(|first| &first.service)
    }

    /// Returns the conflicts, by frontend.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        self.others.iter().flat_map(|(&frontend, losers)| {
            let winner = self.first.get(&frontend).into_iter();
            winner.flat_map(move |winner| {
                losers.iter().map(move |loser| Conflict {
                    frontend,
                    winner: winner.service.clone(),
                    loser: loser.service.clone(),
                    reason: ConflictReason::between(winner, loser),
                })
            })
        })
    }
}
