//! Which Service has a frontend that several Services claim.

use std::fmt;

use foldhash::HashMap;
use indexmap::map::Entry;

use super::{FrontendKey, FrontendKind};
use crate::model::{ArrivalMap, ObjectName};

/// The order in which Services get a frontend that several of them claim: by kind, so that no
/// Service takes the ClusterIP of another one by naming it in `externalIPs` (CVE-2020-8554), then the
/// older one, then by name. The order of events plays no part, so every node and every restart
/// decides the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    pub(super) kind: FrontendKind,
    /// In seconds since 1970; a Service without counts as the youngest.
    pub(super) created: i64,
    pub(super) service: ObjectName,
}

/// Two Services claim one frontend; one of them has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The frontend.
    pub frontend: FrontendKey,
    /// The Service that has it.
    pub winner: ObjectName,
    /// The Service that goes without.
    pub loser: ObjectName,
    /// What decided.
    pub reason: ConflictReason,
}

/// Why a Service goes without a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictReason {
    /// Another kind of frontend comes first.
    Kind {
        /// What it is of the Service that has it.
        winner: FrontendKind,
        /// What it is of the one that goes without.
        loser: FrontendKind,
    },
    /// The other Service is older.
    Age,
    /// Neither Service is older; the other one comes first by name.
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
    /// A clause that follows the name of the Service that has the frontend.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictReason::Kind { winner, loser } => {
                write!(f, "{winner}s take precedence over {loser}s at any age")
            }
            ConflictReason::Age => f.write_str("that Service is older"),
            ConflictReason::Name => f.write_str("neither Service is older, its name comes first"),
        }
    }
}

/// All claims to all frontends. Nearly all frontends have one.
#[derive(Debug, Default)]
pub(super) struct Claims {
    first: ArrivalMap<FrontendKey, Precedence>,
    /// Those that come after the first, in order.
    others: HashMap<FrontendKey, Vec<Precedence>>,
}

impl Claims {
    /// Makes room for so many more frontends.
    pub(super) fn reserve(&mut self, more: usize) {
        self.first.reserve(more);
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
        let others = self.others.entry(key).or_default();
        if let Err(place) = others.binary_search(&later) {
            others.insert(place, later);
        }
    }

    pub(super) fn remove(&mut self, key: FrontendKey, claim: &Precedence) {
        let others = self.others.get_mut(&key);
        if self.first.get(&key) == Some(claim) {
            match others.filter(|others| !others.is_empty()) {
                Some(others) => self.first.insert(key, others.remove(0)),
                None => self.first.swap_remove(&key),
            };
        } else if let Some(others) = others {
            others.retain(|other| other != claim);
        }
        if self.others.get(&key).is_some_and(Vec::is_empty) {
            self.others.remove(&key);
        }
    }

    pub(super) fn winner(&self, key: FrontendKey) -> Option<&ObjectName> {
        self.first.get(&key).map(|first| &first.service)
    }

    pub(super) fn conflicts(&self, key: FrontendKey) -> impl Iterator<Item = Conflict> {
        let winner = self.first.get(&key);
        let losers = self.others.get(&key).map_or(&[][..], Vec::as_slice);
        losers.iter().filter_map(move |loser| {
            let winner = winner?;
            Some(Conflict {
                frontend: key,
                winner: winner.service.clone(),
                loser: loser.service.clone(),
                reason: ConflictReason::between(winner, loser),
            })
        })
    }
}
