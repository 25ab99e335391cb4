//! Session affinity: deletes the entries of clients with a removed backend.
//!
//! Rules store the backend of each client in the map `affinity`, and entries expire. Until then,
//! the kernel would continue to send clients to a removed backend. So a transaction that removes a
//! backend from a frontend with session affinity also deletes the entries with that backend, which a
//! listing of the map finds.
//!
//! A packet that was between the hooks during the commit stores its entry later. And the kernel
//! resizes the hash table of the map after the deletion of many entries: meanwhile, a listing has
//! some entries twice and lacks others, without a sign of it (`nft_rhash_walk`). So the agent lists
//! the map again until it finds no stale entry. This ends, because rules store only backends of the
//! record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nfnetlink::nft::{Batch, DumpedElement, ElementData, Elements, Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Desired, FrontendKey, Set, TABLE, Value};

use super::codec::{decode_affinity_key, decode_value, set_type, table_family};
use super::diff::Stale;
use super::listing::list;
use super::slots::{Pools, pools_with_affinity};

/// The pause before the repetition of a listing. By then, each packet that was between the hooks
/// during the commit has stored its entry, and the kernel has resized the hash table.
const NEXT_LOOK: Duration = Duration::from_millis(500);

/// The listings to repeat, by family.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<Family, Look>);

/// The time of a listing, and the frontends that lost backends to the short circuit before.
#[derive(Debug)]
struct Look {
    at: Instant,
    narrowed: BTreeSet<FrontendKey>,
}

impl Looks {
    /// Returns the time of the next listing.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|look| look.at).min()
    }

    /// Returns the narrowed frontends for a listing of a family's map now; `None` if the map is known
    /// to have no stale entry, or is listed later.
    pub(super) fn due(
        &self,
        family: Family,
        changes: &Stale,
        is_known: bool,
        now: Instant,
    ) -> Option<BTreeSet<FrontendKey>> {
        let due = self.0.get(&family).filter(|look| look.at <= now);
        (!is_known || due.is_some() || changes.families.contains(&family)).then(|| {
            let repeated = due.into_iter().flat_map(|look| &look.narrowed);
            repeated.chain(&changes.narrowed).copied().collect()
        })
    }

    /// Schedules listings after a commit with these changes, which deleted stale entries of these
    /// families.
    pub(super) fn committed(&mut self, changes: &Stale, deleted: &BTreeSet<Family>, now: Instant) {
        for family in Family::ALL {
            let later = self.0.remove(&family).filter(|look| look.at > now);
            if changes.families.contains(&family) || deleted.contains(&family) {
                // New entries of local pods and the node cannot be distinguished from those of
                // clients outside. So lost backends count only in the first listing after the commit.
                let narrowed = later.into_iter().flat_map(|look| look.narrowed);
                let narrowed = narrowed.chain(changes.narrowed.iter().copied()).collect();
                self.0.insert(family, Look { at: now + NEXT_LOOK, narrowed });
            } else if let Some(look) = later {
                self.0.insert(family, look);
            }
        }
    }
}

/// Lists a family's map, and adds the deletion of its stale entries to a batch. Returns true if there
/// are any.
///
/// An entry can expire between the listing and the commit, and the deletion of a missing entry
/// fails the transaction (DESTROYSETELEM, which would not, came with kernel 6.3). So the batch
/// first adds every entry, which has no effect on an existing one, and then deletes it.
pub(super) fn delete_stale<'a>(
    kernel: &mut dyn Kernel,
    family: Family,
    pools: impl Fn(FrontendKey) -> Option<Pools<'a>>,
    narrowed: &BTreeSet<FrontendKey>,
    batch: &mut Batch,
) -> Result<bool, Error> {
    // The second deletion of an entry that the kernel lists twice would fail the transaction.
    let mut stale = BTreeSet::new();
    list(kernel, family, Set::Affinity, &mut |element| {
        if let Some(ElementData::Value(data)) = element.data
            && !is_kept(family, &pools, narrowed, &element)
        {
            stale.insert((element.key.to_vec(), data.to_vec()));
        }
    })?;
    let mut elements = Elements::new();
    for (key, data) in &stale {
        elements.push(key, Some(ElementData::Value(data)), None);
    }
    let (table, set) = (table_family(family), Set::Affinity.name());
    batch.add_elements(table, TABLE, set, &elements);
    batch.delete_elements(table, TABLE, set, &elements);
    Ok(!stale.is_empty())
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
        let is_kept = element.age.is_some() && is_kept(family, pools, &none, &element);
        // While others commit, the kernel can list an element twice.
        if is_kept && seen.insert(element.key.to_vec()) {
            kept.add(&element);
        }
    })?;
    Ok(kept)
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
