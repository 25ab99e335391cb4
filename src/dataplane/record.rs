//! The record of what the kernel holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use foldhash::{HashMap, HashSet};
use shunt_core::model::{ArrivalMap, Backend, Family};
use shunt_core::plan::{
    Chain, ChainName, Element, Frontend, FrontendKey, Key, PlanDelta, Pools, Set, SetMember,
    TcpTimeouts,
};

use super::capacity::Sizes;
use super::ownership::TableOwner;
use super::slots::Slotted;

/// The known state of one family's table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there are two of them")]
pub(super) enum TableState {
    /// The table does not exist.
    #[default]
    Absent,
    /// The table has another layout and must be replaced.
    Unusable,
    /// The table has shunt's layout; rules and elements may differ.
    Ours(Table),
}

/// A table with shunt's layout, without its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// The chains; `None` for a chain whose rules may differ.
    pub(super) chains: BTreeMap<ChainName, Option<Chain>>,
    /// The owner of the table.
    pub(super) owner: TableOwner,
    /// The sizes of its sets.
    pub(super) sizes: Sizes,
    /// True if the table has the set of gone endpoints.
    pub(super) has_gone_set: bool,
    /// The objects for TCP, each with its timeouts. The agent keeps those of former sysctls.
    pub(super) timeouts: BTreeSet<TcpTimeouts>,
    /// The sets must be made anew, because one is too small.
    pub(super) rebuild: bool,
}

impl Table {
    /// Makes a table with empty sets of these sizes.
    pub(super) fn new(owner: TableOwner, sizes: Sizes) -> Table {
        let (chains, timeouts) = Default::default();
        Table { chains, owner, sizes, has_gone_set: false, timeouts, rebuild: false }
    }

    /// Returns true if the table has exactly this chain.
    pub(super) fn has(&self, chain: &Chain) -> bool {
        self.chains.get(&chain.name).is_some_and(|found| found.as_ref() == Some(chain))
    }
}

/// The record of tables, frontends and members in the kernel.
#[derive(Debug, Default)]
pub(super) struct KernelRecord {
    tables: [TableState; 2],
    counts: [TableCounts; 2],
    frontends: ArrivalMap<FrontendKey, Slotted>,
    members: HashSet<SetMember>,
    /// The number of frontends that need each on-demand chain.
    users: HashMap<(Family, ChainName), usize>,
    /// The gone endpoints of each family, and when they expire.
    gone: [BTreeMap<Backend, Instant>; 2],
    pub(super) strays: BTreeSet<Stray>,
}

/// The counts of one family's table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TableCounts {
    pub(super) frontends: usize,
    /// Elements per set, without those that rules add.
    pub(super) elements: [usize; Set::ALL.len()],
}

impl KernelRecord {
    pub(super) fn table(&self, family: Family) -> &TableState {
        &self.tables[family as usize]
    }

    pub(super) fn set_table(&mut self, family: Family, state: TableState) {
        self.tables[family as usize] = state;
    }

    /// Returns a table; `None` if it is missing or must be replaced.
    pub(super) fn ours(&self, family: Family) -> Option<&Table> {
        match self.table(family) {
            TableState::Ours(table) => Some(table),
            TableState::Absent | TableState::Unusable => None,
        }
    }

    pub(super) fn ours_mut(&mut self, family: Family) -> Option<&mut Table> {
        match &mut self.tables[family as usize] {
            TableState::Ours(table) => Some(table),
            TableState::Absent | TableState::Unusable => None,
        }
    }

    /// Returns the owner of a table; `None` if the table is missing or must be replaced.
    pub(super) fn owner(&self, family: Family) -> Option<TableOwner> {
        self.ours(family).map(|table| table.owner)
    }

    /// Returns true if the next transaction replaces a table by another one.
    pub(super) fn replaces_a_table(&self) -> bool {
        self.tables.contains(&TableState::Unusable)
    }

    /// Notes that an empty table replaces this one.
    pub(super) fn forget_table(&mut self, family: Family) {
        self.set_table(family, TableState::Unusable);
        self.gone[family as usize].clear();
        self.forget_elements(family);
    }

    /// Notes that the next transaction makes the sets of a table anew.
    pub(super) fn rebuild_table(&mut self, family: Family) {
        if let Some(table) = self.ours_mut(family) {
            let bound = table.chains.iter_mut().filter(|(name, _)| !name.is_for_gone_endpoints());
            bound.for_each(|(_, chain)| *chain = None);
            table.rebuild = true;
            table.sizes = Sizes::default();
        }
        self.forget_elements(family);
    }

    fn forget_elements(&mut self, family: Family) {
        self.counts[family as usize] = TableCounts::default();
        self.frontends.retain(|key, _| key.family() != family);
        self.members.retain(|member| member.family() != family);
        self.users.retain(|(of, _), _| *of != family);
        self.strays.retain(|stray| stray.family != family);
    }

    /// Returns the gone endpoints of a family. The kernel may have removed those whose time is over.
    pub(super) fn gone(&self, family: Family) -> &BTreeMap<Backend, Instant> {
        &self.gone[family as usize]
    }

    pub(super) fn gone_mut(&mut self, family: Family) -> &mut BTreeMap<Backend, Instant> {
        &mut self.gone[family as usize]
    }

    /// Returns true if no other process can have modified the tables. On a kernel without IPv6, only
    /// that of IPv4 exists.
    pub(super) fn is_owned(&self) -> bool {
        let mut exist = self.tables.iter().filter(|table| **table != TableState::Absent).peekable();
        let is_ours = |it: &TableState| matches!(it, TableState::Ours(table) if table.owner == TableOwner::Ours);
        exist.peek().is_some() && exist.all(is_ours)
    }

    pub(super) fn frontend(&self, key: FrontendKey) -> Option<&Slotted> {
        self.frontends.get(&key)
    }

    /// Returns a planned frontend as the kernel gets it.
    pub(super) fn next(&self, key: FrontendKey, planned: &Frontend) -> Slotted {
        match self.frontend(key) {
            Some(old) => old.followed_by(key, planned),
            None => Slotted::in_order(planned.clone()),
        }
    }

    pub(super) fn set_frontend(&mut self, key: FrontendKey, frontend: Option<Slotted>) {
        if let Some(Slotted { frontend: new, .. }) = &frontend {
            for place in on_demand(key, new) {
                *self.users.entry(place).or_insert(0) += 1;
            }
            self.count(key, new, |count, by| *count += by);
        }
        let old = match frontend {
            Some(new) => self.frontends.insert(key, new),
            None => self.frontends.swap_remove(&key),
        };
        let Some(Slotted { frontend: old, .. }) = old else { return };
        self.count(key, &old, |count, by| *count -= by);
        for place in on_demand(key, &old) {
            if let Some(count) = self.users.get_mut(&place) {
                *count -= 1;
                if *count == 0 {
                    self.users.remove(&place);
                }
            }
        }
    }

    /// Adds the elements of a frontend to the counts, or subtracts them.
    fn count(&mut self, key: FrontendKey, frontend: &Frontend, change: fn(&mut usize, usize)) {
        let counts = &mut self.counts[key.family() as usize];
        change(&mut counts.frontends, 1);
        for element in frontend.decisions(key) {
            change(&mut counts.elements[element.set as usize], 1);
        }
        for (pools, backends) in frontend.pools(key) {
            change(&mut counts.elements[pools.endpoints() as usize], backends.len());
        }
    }

    /// Returns the counts of a family's table.
    pub(super) fn counts(&self, family: Family) -> &TableCounts {
        &self.counts[family as usize]
    }

    pub(super) fn has_member(&self, member: SetMember) -> bool {
        self.members.contains(&member)
    }

    pub(super) fn set_member(&mut self, member: SetMember, present: bool) {
        let elements = &mut self.counts[member.family() as usize].elements;
        let count = &mut elements[member.set as usize];
        if present {
            *count += usize::from(self.members.insert(member));
        } else {
            *count -= usize::from(self.members.remove(&member));
        }
    }

    /// Reserves capacity for more frontends and members.
    pub(super) fn reserve(&mut self, frontends: usize, members: usize) {
        self.frontends.reserve_exact(frontends);
        self.members.reserve(members);
    }

    /// Returns true if this is an element of the record.
    pub(super) fn has(&self, element: &Element<'_>) -> bool {
        let is_of = |key, is_own: &dyn Fn(&Frontend) -> bool| {
            self.frontend(key).is_some_and(|slotted| is_own(&slotted.frontend))
        };
        match element.key {
            Key::Address(address) | Key::Hairpin(address) => {
                self.has_member(SetMember { set: element.set, address })
            }
            Key::Frontend(key) | Key::Source(key, _) => {
                is_of(key, &|frontend| frontend.decisions(key).any(|own| own == *element))
            }
            Key::Pool(key, index) => is_of(key, &|frontend| {
                let slot = |(pools, pool): (Pools, &Arc<[Backend]>)| {
                    Some(pools.slot(key, index, *pool.get(index as usize)?))
                };
                frontend.pools(key).filter_map(slot).any(|own| own == *element)
            }),
        }
    }

    pub(super) fn frontend_keys(&self) -> impl Iterator<Item = FrontendKey> {
        self.frontends.keys().copied()
    }

    /// Returns the number of frontends.
    pub(super) fn frontend_count(&self) -> usize {
        self.frontends.len()
    }

    /// Returns the on-demand chains that no frontend uses.
    pub(super) fn unused_chains(&self) -> BTreeSet<(Family, ChainName)> {
        let tables = Family::ALL.into_iter().filter_map(|it| Some((it, self.ours(it)?)));
        let chains =
            tables.flat_map(|(it, table)| table.chains.keys().map(move |name| (it, *name)));
        let on_demand =
            chains.filter(|(_, name)| name.is_on_demand() && !name.is_for_gone_endpoints());
        on_demand.filter(|place| !self.users.contains_key(place)).collect()
    }

    /// Returns a delta with the whole record, for a comparison with the plan.
    pub(super) fn everything(&self) -> PlanDelta {
        let (frontends, members) = (self.frontends.keys(), self.members.iter());
        PlanDelta {
            frontends: frontends.copied().collect(),
            members: members.copied().collect(),
            chains: true,
        }
    }
}

/// Returns the on-demand chains of a frontend.
fn on_demand(key: FrontendKey, frontend: &Frontend) -> impl Iterator<Item = (Family, ChainName)> {
    frontend.chains(key).map(move |name| (key.family(), name))
}

/// An invalid element, which the next transaction deletes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stray {
    pub(super) family: Family,
    pub(super) set: Set,
    pub(super) key: Vec<u8>,
    pub(super) key_end: Option<Vec<u8>>,
}
