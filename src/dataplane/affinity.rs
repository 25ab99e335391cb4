//! Session affinity: deletes the entries of clients with a removed backend.
//!
//! Rules store the backend of each client in the map `affinity`, and entries expire. Until then,
//! the kernel would continue to send clients to a removed backend. So a transaction that removes a
//! backend from a frontend with session affinity also deletes the entries with that backend.
//!
//! A listing of the map finds them. The transaction does not wait for a long listing: then the
//! agent lists the map part by part after the commit, with other commits between two parts.
//!
//! The kernel resizes the hash table of the map after the deletion of many entries. Meanwhile, a
//! listing has some entries twice and lacks others, without a sign of it (`nft_rhash_walk`). So the
//! agent lists the map until it finds no stale entry. This ends, because rules store only backends
//! of the record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nfnetlink::nft::{Batch, DumpedElement, ElementData, Elements, Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Desired, FrontendKey, Set, TABLE, Value};

use super::codec::{decode_affinity_key, decode_value, set_type, table_family};
use super::diff::Stale;
use super::listing::list;
use super::slots::{Pools, Slotted, pools_with_affinity};
use super::state::Current;
use super::stats::CommitStats;
use super::stopwatch::Stopwatch;

/// The largest map whose listing a transaction waits for. 4 000 entries take 3 ms (Linux 6.18).
const LISTED_AT_ONCE: usize = 4_000;
/// The number of entries that one transaction after the commit deletes: 2 ms.
const DELETED_AT_ONCE: usize = 1_000;
/// The pause before the repetition of a listing. By then, each packet that was between the hooks
/// during the commit has stored its entry, and the kernel has resized the hash table.
const NEXT_LOOK: Duration = Duration::from_millis(500);
/// The number of refused deletions of one listing before the rest waits for the next listing.
const ATTEMPTS: u8 = 5;

/// The deletions after commits, for which no transaction waits.
#[derive(Default)]
pub(super) struct Sweep {
    waiting: Stale,
    next_looks: BTreeMap<Family, NextLook>,
    running: Option<Running>,
}

/// The time of the next listing of a family's map, and the frontends that lost backends to the
/// short circuit.
#[derive(Default)]
struct NextLook {
    /// `None`: the pause begins with the next step.
    at: Option<Instant>,
    narrowed: BTreeSet<FrontendKey>,
}

/// The context of a step.
pub(super) struct Step<'a> {
    pub(super) kernel: &'a mut dyn Kernel,
    pub(super) stopwatch: &'a dyn Stopwatch,
    pub(super) stats: &'a mut CommitStats,
    pub(super) current: &'a mut Current,
}

/// A sweep of one family's map: a listing, then deletions.
struct Running {
    family: Family,
    narrowed: BTreeSet<FrontendKey>,
    stage: Stage,
    stale: Vec<Entry>,
    refused: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The listing has not begun.
    Start,
    /// The listing has more parts.
    List,
    /// The sweep deletes stale entries.
    Delete,
}

/// Key and data of an entry.
type Entry = (Vec<u8>, Vec<u8>);

/// The stale entries that a transaction can delete.
pub(super) enum Found {
    /// All stale entries.
    All(Elements),
    /// Unknown: the map is too large, or another listing is in progress. A sweep follows the
    /// commit.
    Later,
}

impl Sweep {
    /// Lists the map of a family if it is small enough.
    pub(super) fn find<'a>(
        &mut self,
        kernel: &mut dyn Kernel,
        family: Family,
        pools: impl Fn(FrontendKey) -> Option<Pools<'a>>,
        narrowed: &BTreeSet<FrontendKey>,
    ) -> Result<Found, Error> {
        if let Some(running) = self.running.take() {
            // The listing starts over, soon if the map is small.
            self.waiting.families.insert(running.family);
            self.waiting.narrowed.extend(&running.narrowed);
            let mut skipped = 0;
            let mut more = running.stage == Stage::List;
            while more && skipped < LISTED_AT_ONCE {
                more = kernel.next_part(&mut |_| skipped += 1)?;
            }
            if more {
                self.running = Some(running);
                return Ok(Found::Later);
            }
        }
        kernel.start_listing(table_family(family), TABLE, Set::Affinity.name())?;
        let (mut listed, mut stale) = (0, Vec::new());
        let mut more = true;
        while more && listed < LISTED_AT_ONCE {
            more = kernel.next_part(&mut |element| {
                listed += 1;
                stale.extend(stale_entry(family, &pools, narrowed, &element));
            })?;
        }
        if !more {
            keep_one_of_each(&mut stale);
            return Ok(Found::All(elements(&stale)));
        }
        let narrowed = narrowed.clone();
        self.running = Some(Running { family, narrowed, stage: Stage::List, stale, refused: 0 });
        Ok(Found::Later)
    }

    /// Schedules a sweep after a transaction that removed backends.
    pub(super) fn committed(&mut self, stale: &Stale, later: &Stale) {
        // The current listing belongs to this transaction, or another one follows it.
        self.waiting.merge(later);
        for family in &stale.families {
            self.look_again(*family, &stale.narrowed);
        }
    }

    /// Postpones the listing of a family's map, also an earlier one.
    fn look_again(&mut self, family: Family, narrowed: &BTreeSet<FrontendKey>) {
        let look = self.next_looks.entry(family).or_default();
        look.at = None;
        look.narrowed.extend(narrowed);
    }

    /// Restarts the current listing after the socket was replaced.
    pub(super) fn restart(&mut self) {
        if let Some(mut running) = self.running.take() {
            self.waiting.families.insert(running.family);
            self.waiting.narrowed.append(&mut running.narrowed);
        }
    }

    /// Starts the sweep of the next waiting family, unless another sweep is in progress.
    fn take_next(&mut self) -> Option<Running> {
        if self.running.is_some() {
            return self.running.take();
        }
        let family = self.waiting.families.pop_first()?;
        let narrowed = self.waiting.narrowed.clone();
        if self.waiting.families.is_empty() {
            self.waiting.narrowed.clear();
        }
        Some(Running { family, narrowed, stage: Stage::Start, stale: Vec::new(), refused: 0 })
    }

    /// Returns the time of the next step; `None` without a sweep.
    pub(super) fn next_step(&self, now: Instant) -> Option<Instant> {
        if self.running.is_some() || !self.waiting.families.is_empty() {
            return Some(now);
        }
        self.next_looks.values().map(|look| look.at.unwrap_or(now)).min()
    }

    /// Runs the next step of the sweep, for a few milliseconds at most.
    pub(super) fn step(&mut self, step: Step<'_>, now: Instant) {
        for look in self.next_looks.values_mut() {
            look.at.get_or_insert(now + NEXT_LOOK);
        }
        self.next_looks.retain(|family, look| {
            let is_due = look.at.is_some_and(|at| at <= now);
            if is_due {
                self.waiting.families.insert(*family);
                self.waiting.narrowed.append(&mut look.narrowed);
            }
            !is_due
        });
        let Some(running) = self.take_next() else { return };
        let (family, narrowed) = (running.family, running.narrowed.clone());
        let result = match running.stage {
            Stage::Start => self.start_listing(step, running),
            Stage::List => self.list_part(step, running),
            Stage::Delete => self.delete_some(step, running),
        };
        if result.is_err() {
            // The next transaction reports a failing kernel.
            self.look_again(family, &narrowed);
        }
    }

    fn start_listing(&mut self, step: Step<'_>, mut running: Running) -> Result<(), Error> {
        let family = running.family;
        if step.current.record.owner(family).is_some() {
            step.kernel.start_listing(table_family(family), TABLE, Set::Affinity.name())?;
            running.stage = Stage::List;
            self.running = Some(running);
        }
        Ok(())
    }

    /// Compares with the record, which rules use, and not with the plan, which may not be
    /// committed.
    fn list_part(&mut self, step: Step<'_>, mut running: Running) -> Result<(), Error> {
        let Running { family, narrowed, stale, .. } = &mut running;
        let record = &step.current.record;
        let pools = |key| record.frontend(key).and_then(Slotted::pools_with_affinity);
        let more = step.kernel.next_part(&mut |element| {
            stale.extend(stale_entry(*family, pools, narrowed, &element));
        })?;
        if !more {
            keep_one_of_each(&mut running.stale);
            running.stage = Stage::Delete;
        }
        if more || !running.stale.is_empty() {
            self.running = Some(running);
        }
        Ok(())
    }

    /// Deletes after the listing, not during it: a deletion makes the kernel omit other entries.
    fn delete_some(&mut self, step: Step<'_>, mut running: Running) -> Result<(), Error> {
        let rest = running.stale.len().saturating_sub(DELETED_AT_ONCE);
        let gone = elements(&running.stale.split_off(rest));
        let mut batch = Batch::new(None);
        delete(running.family, &gone, &mut batch);
        match step.stats.commit(step.kernel, step.stopwatch, &batch.finish()) {
            Ok(()) => step.current.advance(),
            // An entry expired and was stored anew with other data, so the map must be listed
            // again.
            Err(Error::Refused(_)) if running.refused < ATTEMPTS => running.refused += 1,
            Err(error) => return Err(error),
        }
        if running.stale.is_empty() {
            // New entries of local pods and the node cannot be distinguished from those of clients
            // outside. So lost backends count only in the first listing after the commit.
            self.look_again(running.family, &BTreeSet::new());
        } else {
            self.running = Some(running);
        }
        Ok(())
    }
}

/// Adds the deletion of entries to a batch.
///
/// An entry can expire between the listing and the commit, and the deletion of a missing entry
/// fails the transaction (DESTROYSETELEM, which would not, came with kernel 6.3). So the batch
/// first adds every entry, which has no effect on an existing one, and then deletes it.
pub(super) fn delete(family: Family, entries: &Elements, batch: &mut Batch) {
    let (table, set) = (table_family(family), Set::Affinity.name());
    batch.add_elements(table, TABLE, set, entries);
    batch.delete_elements(table, TABLE, set, entries);
}

/// Returns the valid entries of a table that is replaced, with their age. The table may be that of
/// another version of the agent.
pub(super) fn kept(
    kernel: &mut dyn Kernel,
    family: Family,
    desired: &Desired,
) -> Result<Elements, Error> {
    let mut kept = Elements::new();
    let wanted = set_type(family, Set::Affinity);
    let sets = kernel.sets(table_family(family), TABLE)?;
    if !sets.iter().any(|set| set.name == Set::Affinity.name() && set.is(&wanted)) {
        return Ok(kept);
    }
    let pools = |key| desired.frontend(key).and_then(pools_with_affinity);
    let mut seen = BTreeSet::new();
    list(kernel, family, Set::Affinity, &mut |element| {
        let none = BTreeSet::new();
        let Some(age) = element.age.filter(|_| is_kept(family, pools, &none, &element)) else {
            return;
        };
        // While others commit, the kernel can list an element twice.
        if seen.insert(element.key.to_vec()) {
            kept.push_aging(element.key, element.data, age);
        }
    })?;
    Ok(kept)
}

fn elements(entries: &[Entry]) -> Elements {
    let mut elements = Elements::new();
    for (key, data) in entries {
        elements.push(key, Some(ElementData::Value(data)), None);
    }
    elements
}

/// Removes duplicates: the second deletion of an entry would fail the transaction.
fn keep_one_of_each(entries: &mut Vec<Entry>) {
    entries.sort_unstable();
    entries.dedup();
}

fn stale_entry<'a>(
    family: Family,
    pools: impl Fn(FrontendKey) -> Option<Pools<'a>>,
    narrowed: &BTreeSet<FrontendKey>,
    entry: &DumpedElement<'_>,
) -> Option<Entry> {
    let Some(ElementData::Value(data)) = entry.data else { return None };
    (!is_kept(family, pools, narrowed, entry)).then(|| (entry.key.to_vec(), data.to_vec()))
}

/// Returns true if the frontend still has the backend of an entry.
fn is_kept<'a>(
    family: Family,
    pools: impl Fn(FrontendKey) -> Option<Pools<'a>>,
    narrowed: &BTreeSet<FrontendKey>,
    entry: &DumpedElement<'_>,
) -> bool {
    let value = entry.data.and_then(|data| decode_value(family, data));
    let Some(Value::Backend(backend)) = value else { return false };
    let keys = decode_affinity_key(family, entry.key);
    let found = keys.into_iter().flatten().find_map(|key| Some((key, pools(key)?)));
    found.is_some_and(|(key, pools)| {
        let count = if narrowed.contains(&key) { 1 } else { 2 };
        pools.have(backend, count)
    })
}
