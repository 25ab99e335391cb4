//! The record of what the kernel holds.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::model::Family;
use crate::plan::{Chain, ChainName, Element, Frontend, FrontendKey, Key, Set, Touched, Value};

/// One family's table, as far as the kernel has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum TableState {
    /// There is none.
    #[default]
    Absent,
    /// There is one of that name, but not as we lay it out: it has to be replaced.
    Unusable,
    /// It is as we lay it out, but for rules and elements that may differ.
    Ours {
        /// Its chains; `None` for one whose rules are not known to be right.
        chains: BTreeMap<ChainName, Option<Chain>>,
    },
}

/// What the kernel holds.
#[derive(Debug, Default)]
pub(super) struct Committed {
    tables: [TableState; 2],
    frontends: HashMap<FrontendKey, Frontend>,
    members: HashSet<(Set, Key)>,
    /// How many frontends go to a balancer.
    users: HashMap<(Family, ChainName), usize>,
    /// Elements that make no sense, as set and raw key: to be deleted.
    pub(super) strays: Vec<(Family, Set, Vec<u8>)>,
}

impl Committed {
    pub(super) fn table(&self, family: Family) -> &TableState {
        &self.tables[family as usize]
    }

    pub(super) fn set_table(&mut self, family: Family, state: TableState) {
        self.tables[family as usize] = state;
    }

    /// The chain as the kernel has it: `None` if it does not exist, `Some(None)` if it does but
    /// its rules are not known.
    pub(super) fn chain(&self, family: Family, name: ChainName) -> Option<Option<&Chain>> {
        match self.table(family) {
            TableState::Ours { chains } => chains.get(&name).map(Option::as_ref),
            TableState::Absent | TableState::Unusable => None,
        }
    }

    pub(super) fn set_chain(&mut self, family: Family, name: ChainName, chain: Option<Chain>) {
        if let TableState::Ours { chains } = &mut self.tables[family as usize] {
            match chain {
                Some(chain) => chains.insert(name, Some(chain)),
                None => chains.remove(&name),
            };
        }
    }

    pub(super) fn frontend(&self, key: FrontendKey) -> Option<&Frontend> {
        self.frontends.get(&key)
    }

    pub(super) fn set_frontend(&mut self, key: FrontendKey, frontend: Option<Frontend>) {
        let balancer = |frontend: &Frontend| balancer_of(&frontend.verdict(key));
        let added = frontend.as_ref().and_then(balancer);
        let old = match frontend {
            Some(frontend) => self.frontends.insert(key, frontend),
            None => self.frontends.remove(&key),
        };
        if let Some(name) = added {
            *self.users.entry((key.family(), name)).or_insert(0) += 1;
        }
        if let Some(name) = old.as_ref().and_then(balancer)
            && let Some(count) = self.users.get_mut(&(key.family(), name))
        {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&(key.family(), name));
            }
        }
    }

    pub(super) fn has_member(&self, set: Set, key: Key) -> bool {
        self.members.contains(&(set, key))
    }

    pub(super) fn set_member(&mut self, set: Set, key: Key, present: bool) {
        if present {
            self.members.insert((set, key));
        } else {
            self.members.remove(&(set, key));
        }
    }

    /// The number of frontends.
    pub(super) fn frontend_count(&self) -> usize {
        self.frontends.len()
    }

    /// Balancers that no frontend goes to any more.
    pub(super) fn unused_balancers(&self) -> BTreeSet<(Family, ChainName)> {
        let mut unused = BTreeSet::new();
        for family in Family::ALL {
            if let TableState::Ours { chains } = self.table(family) {
                unused.extend(
                    chains
                        .keys()
                        .filter(|name| name.is_balancer())
                        .map(|name| (family, *name))
                        .filter(|place| !self.users.contains_key(place)),
                );
            }
        }
        unused
    }

    /// Everything that is there: for comparing all of it with the plan.
    pub(super) fn everything(&self) -> Touched {
        Touched {
            frontends: self.frontends.keys().copied().collect(),
            members: self.members.iter().copied().collect(),
            chains: true,
        }
    }
}

/// The balancer that a verdict element goes to, if it goes to one.
pub(super) fn balancer_of(verdict: &Element<'_>) -> Option<ChainName> {
    match verdict.value {
        Some(Value::Goto(name)) if name.is_balancer() => Some(name),
        _ => None,
    }
}
