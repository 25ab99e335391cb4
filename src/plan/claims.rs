//! Who owns a frontend when several Services want it.

use foldhash::HashMap;
use indexmap::map::Entry;

use super::FrontendKey;
use crate::model::{ArrivalMap, ObjectName, Service};

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

/// All claims to all frontends. Nearly all frontends have one.
#[derive(Debug, Default)]
pub(super) struct Claims {
    first: ArrivalMap<FrontendKey, Rank>,
    /// Those that come after the first, in order.
    others: HashMap<FrontendKey, Vec<Rank>>,
}

impl Claims {
    /// Makes room for so many more frontends.
    pub(super) fn reserve(&mut self, more: usize) {
        self.first.reserve(more);
    }

    pub(super) fn add(&mut self, key: FrontendKey, rank: &Rank) {
        let later = match self.first.entry(key) {
            Entry::Vacant(place) => {
                place.insert(rank.clone());
                return;
            }
            Entry::Occupied(first) if first.get() == rank => return,
            Entry::Occupied(first) if first.get() < rank => rank.clone(),
            Entry::Occupied(mut first) => first.insert(rank.clone()),
        };
        let others = self.others.entry(key).or_default();
        if let Err(place) = others.binary_search(&later) {
            others.insert(place, later);
        }
    }

    pub(super) fn remove(&mut self, key: FrontendKey, rank: &Rank) {
        let others = self.others.get_mut(&key);
        if self.first.get(&key) == Some(rank) {
            match others.filter(|others| !others.is_empty()) {
                Some(others) => self.first.insert(key, others.remove(0)),
                None => self.first.swap_remove(&key),
            };
        } else if let Some(others) = others {
            others.retain(|other| other != rank);
        }
        if self.others.get(&key).is_some_and(Vec::is_empty) {
            self.others.remove(&key);
        }
    }

    pub(super) fn winner(&self, key: FrontendKey) -> Option<&ObjectName> {
        self.first.get(&key).map(|rank| &rank.service)
    }

    pub(super) fn conflicts(&self, key: FrontendKey) -> impl Iterator<Item = Conflict> {
        let losers = self.others.get(&key).map_or(&[][..], Vec::as_slice);
        losers.iter().filter_map(move |loser| {
            Some(Conflict {
                frontend: key,
                winner: self.winner(key)?.clone(),
                loser: loser.service.clone(),
            })
        })
    }
}
