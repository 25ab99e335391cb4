//! The difference between the record and the plan, as elements to write.

use std::collections::BTreeSet;

use nfnetlink::nft::{Batch, Counter, DumpedElement, Elements};
use shunt_core::model::{Backend, Family};
use shunt_core::plan::{
    ChainName, Desired, Element, Frontend, FrontendKey, PlanDelta, Pools, Set, SetMember, TABLE,
};

use super::capacity::Counts;
use super::codec::{Bytes, encode_key, encode_key_end, push, table_family};
use super::counters::Continued;
use super::quarantine::{Quarantine, Suspect};
use super::record::{KernelRecord, TableState};
use super::slots::Slotted;

const SETS: usize = Set::ALL.len();

/// The maps and frontends whose affinity entries may have removed backends.
#[derive(Debug, Clone, Default)]
pub(super) struct Stale {
    /// Families in which a frontend with session affinity loses a backend, or is removed.
    pub(super) families: BTreeSet<Family>,
    /// Frontends whose main pool lost a backend to the short circuit, for example when the policy
    /// becomes Local: clients outside must lose it. An entry does not contain the kind of its
    /// client, so only the main pool counts here.
    pub(super) narrowed: BTreeSet<FrontendKey>,
}

impl Stale {
    /// Merges another value into this one.
    pub(super) fn merge(&mut self, other: &Stale) {
        self.families.extend(&other.families);
        self.narrowed.extend(&other.narrowed);
    }
}

/// Returns the size in bytes of what a transaction from one plan to another writes, without rules.
#[must_use]
pub fn bytes_between(now: &Desired, then: &Desired) -> usize {
    let mut record = KernelRecord::default();
    for (key, frontend) in now.frontends() {
        record.set_frontend(key, Some(Slotted::in_order(frontend.clone())));
    }
    now.members().into_iter().for_each(|member| record.set_member(member, true));
    let mut touched = then.everything();
    touched.merge(record.everything());
    let mut delta = Delta::between(&record, then, &touched, &Quarantine::default(), false);
    delta.continue_counters(|all| vec![Counter::default(); all.len()]);
    let mut batch = Batch::new(None);
    Family::ALL.into_iter().for_each(|family| delta.write(family, &mut batch));
    batch.finish().bytes().len()
}

/// Encoded elements to delete and to add, and the new state of the record after their commit.
pub(super) struct Delta {
    deletions: [[Elements; SETS]; 2],
    additions: [[Elements; SETS]; 2],
    /// Further additions, whose counters are not read yet: elements of a frontend, by its place and
    /// the map, with the map of a short circuit that it loses.
    continued: Vec<(usize, Set, Option<Set>)>,
    /// The on-demand chains of the changed frontends.
    pub(super) chains: BTreeSet<(Family, ChainName)>,
    /// The affinity entries that may be stale.
    pub(super) stale: Stale,
    frontends: Vec<(FrontendKey, Option<Slotted>)>,
    members: Vec<(SetMember, bool)>,
}

impl Delta {
    fn new(isolated: bool) -> Delta {
        let elements = || {
            let mut elements = Elements::new();
            if isolated {
                elements.isolate();
            }
            elements
        };
        let sets = || std::array::from_fn(|_| std::array::from_fn(|_| elements()));
        Delta {
            deletions: sets(),
            additions: sets(),
            continued: Vec::new(),
            chains: BTreeSet::new(),
            stale: Stale::default(),
            frontends: Vec::new(),
            members: Vec::new(),
        }
    }

    /// Compares the touched frontends and members with the record, except those in quarantine. With
    /// `isolated`, every element gets a message of its own, so that a refusal names just one.
    pub(super) fn between(
        record: &KernelRecord,
        desired: &Desired,
        touched: &PlanDelta,
        quarantine: &Quarantine,
        isolated: bool,
    ) -> Delta {
        let mut delta = Delta::new(isolated);
        for stray in &record.strays {
            let (key, key_end) = (&stray.key, stray.key_end.as_deref());
            let target = &mut delta.deletions[stray.family as usize][stray.set as usize];
            target.add(&DumpedElement { key, key_end, ..DumpedElement::default() });
        }
        let held = |key: &&FrontendKey| quarantine.holds(Suspect::Frontend(**key));
        delta.frontends.reserve(touched.frontends.len());
        for key in touched.frontends.iter().filter(|key| !held(key)) {
            delta.frontend(record, *key, desired.frontend(*key));
        }
        let held = |member: &&SetMember| quarantine.holds(Suspect::Member(**member));
        delta.members.reserve(touched.members.len());
        for member in touched.members.iter().filter(|member| !held(member)) {
            let wanted = desired.has_member(*member);
            match (record.has_member(*member), wanted) {
                (false, true) => delta.add(&member.element(), None),
                (true, false) => delta.delete(&member.element()),
                _ => continue,
            }
            delta.members.push((*member, wanted));
        }
        delta
    }

    fn frontend(&mut self, record: &KernelRecord, key: FrontendKey, new: Option<&Frontend>) {
        let old = record.frontend(key);
        let slotted = new.map(|new| record.next(key, new));
        if let Some(old) = old.filter(|old| old.frontend.affinity.is_some()) {
            let narrowed = slotted.as_ref().is_some_and(|new| old.is_narrowed_by(new));
            if narrowed {
                self.stale.narrowed.insert(key);
            }
            if narrowed || old.loses_backends(slotted.as_ref()) {
                self.stale.families.insert(key.family());
            }
        }
        let old = old.map(|old| &old.frontend);
        let new = slotted.as_ref().map(|new| &new.frontend);
        if old == new {
            return;
        }
        self.decisions(record, key, old, new);
        let (main, short_circuit) = Frontend::pools_of(key);
        for pools in [main, short_circuit] {
            let old_pool = old.map_or(&[][..], |f| f.pool(key, pools));
            let new_pool = new.map_or(&[][..], |f| f.pool(key, pools));
            self.pool(key, pools, old_pool, new_pool);
        }
        let chains = new.into_iter().flat_map(|frontend| frontend.chains(key));
        self.chains.extend(chains.map(|name| (key.family(), name)));
        self.frontends.push((key, slotted));
    }

    fn decisions(
        &mut self,
        record: &KernelRecord,
        key: FrontendKey,
        old: Option<&Frontend>,
        new: Option<&Frontend>,
    ) {
        let Some(new) = new else {
            old.into_iter().flat_map(|f| f.decisions(key)).for_each(|e| self.delete(&e));
            return;
        };
        let (main, short_circuit) = Frontend::pools_of(key);
        // Another service port starts at zero. Elements that the kernel has of a frontend beside the
        // record are strays, or those of a table or of sets that are replaced.
        let continues = match old {
            Some(old) => old.label == new.label,
            None => {
                let is_replaced = match record.table(key.family()) {
                    TableState::Ours(table) => table.rebuild,
                    state => *state == TableState::Unusable,
                };
                is_replaced || !record.strays.is_empty()
            }
        };
        let loses = continues
            && new.short_circuit.is_empty()
            && old.is_none_or(|old| !old.short_circuit.is_empty());
        let absorbs = loses.then(|| short_circuit.verdicts());
        let Some(old) = old else {
            new.decisions(key).for_each(|e| self.decide(&e, continues, absorbs));
            return;
        };
        let mut old_elements: Vec<Element<'_>> = old.decisions(key).collect();
        let mut new_elements: Vec<Element<'_>> = new.decisions(key).collect();
        old_elements.sort_unstable();
        new_elements.sort_unstable();
        // The verdict is written in any case if its counter grows by that of the short circuit.
        let grows = |element: &&Element<'_>| element.set == main.verdicts() && loses;
        let is_in = |all: &[Element<'_>], element| all.binary_search(element).is_ok();
        for element in old_elements.iter().filter(|e| !is_in(&new_elements, e) || grows(e)) {
            self.delete(element);
        }
        for element in new_elements.iter().filter(|e| !is_in(&old_elements, e) || grows(e)) {
            self.decide(element, continues, absorbs);
        }
    }

    /// Adds an element of the next frontend, which may continue counters.
    fn decide(&mut self, element: &Element<'_>, continues: bool, absorbs: Option<Set>) {
        if continues && element.set.counts() {
            let absorbs = absorbs.filter(|short_circuit| *short_circuit != element.set);
            self.continued.push((self.frontends.len(), element.set, absorbs));
        } else {
            self.add(element, None);
        }
    }

    /// Reads the counters that new elements continue, and adds these elements.
    pub(super) fn continue_counters(
        &mut self,
        read: impl FnOnce(&[Continued<'_>]) -> Vec<Counter>,
    ) {
        let continued = std::mem::take(&mut self.continued);
        let frontends = std::mem::take(&mut self.frontends);
        let continued = continued.into_iter().filter_map(|(place, set, absorbs)| {
            let (key, new) = frontends.get(place)?;
            let element = new.as_ref()?.frontend.decisions(*key).find(|it| it.set == set)?;
            Some(Continued { element, absorbs })
        });
        let continued: Vec<Continued<'_>> = continued.collect();
        for (continued, sum) in continued.iter().zip(read(&continued)) {
            self.add(&continued.element, Some(sum).filter(|sum| sum.packets > 0));
        }
        drop(continued);
        self.frontends = frontends;
    }

    fn pool(&mut self, key: FrontendKey, pools: Pools, old: &[Backend], new: &[Backend]) {
        for index in 0..old.len().max(new.len()) {
            let (before, after) = (old.get(index), new.get(index));
            if before == after {
                continue;
            }
            let slot = |backend: &Backend| pools.slot(key, index as u32, *backend);
            if let Some(before) = before {
                self.delete(&slot(before));
            }
            if let Some(after) = after {
                self.add(&slot(after), None);
            }
        }
    }

    fn add(&mut self, element: &Element<'_>, counter: Option<Counter>) {
        let target = &mut self.additions[element.key.family() as usize][element.set as usize];
        push(element, counter, target);
    }

    fn delete(&mut self, element: &Element<'_>) {
        let target = &mut self.deletions[element.key.family() as usize][element.set as usize];
        let (key, end) = (encode_key(element.key), encode_key_end(element.key));
        let (key, key_end) = (key.as_slice(), end.as_ref().map(Bytes::as_slice));
        target.add(&DumpedElement { key, key_end, ..DumpedElement::default() });
    }

    /// Writes the elements of one family: first all deletions, so that an addition may replace.
    pub(super) fn write(&self, family: Family, batch: &mut Batch) {
        let table = table_family(family);
        for set in Set::ALL {
            let elements = &self.deletions[family as usize][set as usize];
            batch.delete_elements(table, TABLE, set.name(), elements);
        }
        for set in Set::ALL {
            let elements = &self.additions[family as usize][set as usize];
            batch.add_elements(table, TABLE, set.name(), elements);
        }
    }

    /// Returns the numbers of added and deleted elements.
    pub(super) fn counts(&self) -> (usize, usize) {
        let sum = |sets: &[[Elements; SETS]; 2]| sets.iter().flatten().map(Elements::len).sum();
        (sum(&self.additions), sum(&self.deletions))
    }

    /// Returns the numbers of elements of a table's sets after the commit.
    pub(super) fn counts_after(&self, record: &KernelRecord, family: Family) -> Counts {
        let place = family as usize;
        let mut counts = record.counts(family).elements;
        for (set, count) in counts.iter_mut().enumerate() {
            *count += self.additions[place][set].len();
        }
        for (frontend, set, _) in &self.continued {
            let key = self.frontends.get(*frontend).map(|(key, _)| key.family());
            counts[*set as usize] += usize::from(key == Some(family));
        }
        for stray in record.strays.iter().filter(|stray| stray.family == family) {
            counts[stray.set as usize] += 1;
        }
        for (set, count) in counts.iter_mut().enumerate() {
            *count = count.saturating_sub(self.deletions[place][set].len());
        }
        counts
    }

    /// Returns the number of changed frontends and members outside of the given delta.
    pub(super) fn beside(&self, named: &PlanDelta) -> usize {
        let frontends = self.frontends.iter().filter(|(key, _)| !named.frontends.contains(key));
        let members = self.members.iter().filter(|(member, _)| !named.members.contains(member));
        frontends.count() + members.count()
    }

    /// Updates the record after the commit.
    pub(super) fn enter(self, record: &mut KernelRecord) {
        // At a start, this is much memory, and the record needs some.
        drop((self.additions, self.deletions));
        record.strays.clear();
        record.reserve(
            self.frontends.len().saturating_sub(record.frontend_count()),
            self.members.len(),
        );
        for (key, frontend) in self.frontends {
            record.set_frontend(key, frontend);
        }
        for (member, present) in self.members {
            record.set_member(member, present);
        }
    }
}
