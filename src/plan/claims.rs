//! Who owns a frontend when several Services want it.

use std::collections::HashMap;

use super::FrontendKey;
use crate::model::{ObjectName, Service};

/// The order in which Services get what several of them want: the older first, then by name. The
/// order of events plays no part, so every node and every restart decides the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    created: i64,
    service: ObjectName,
}

impl Rank {
    pub(super) fn of(service: &Service) -> Rank {
        Rank { created: service.created.unwrap_or(i64::MAX), service: service.name.clone() }
    }
}

/// Two Services want one frontend; one of them has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The frontend.
    pub frontend: FrontendKey,
    /// The Service that has it.
    pub winner: ObjectName,
    /// The Service that goes without.
    pub loser: ObjectName,
}

/// All claims to all frontends, each list in rank order. Nearly all have one entry.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claims: HashMap<FrontendKey, Vec<Rank>>,
}

impl Claims {
    pub(super) fn add(&mut self, key: FrontendKey, rank: &Rank) {
        let ranks = self.claims.entry(key).or_default();
        if let Err(place) = ranks.binary_search(rank) {
            ranks.insert(place, rank.clone());
        }
    }

    pub(super) fn remove(&mut self, key: FrontendKey, rank: &Rank) {
        if let Some(ranks) = self.claims.get_mut(&key) {
            ranks.retain(|other| other != rank);
            if ranks.is_empty() {
                self.claims.remove(&key);
            }
        }
    }

    pub(super) fn winner(&self, key: FrontendKey) -> Option<&ObjectName> {
        self.claims.get(&key)?.first().map(|rank| &rank.service)
    }

    pub(super) fn conflicts(&self, key: FrontendKey) -> impl Iterator<Item = Conflict> {
        let ranks = self.claims.get(&key).map_or(&[][..], Vec::as_slice);
        let winner = ranks.first();
        ranks.iter().skip(1).filter_map(move |loser| {
            Some(Conflict {
                frontend: key,
                winner: winner?.service.clone(),
                loser: loser.service.clone(),
            })
        })
    }
}
