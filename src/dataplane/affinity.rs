//! Session affinity: making clients forget backends that are gone.
//!
//! The kernel learns by itself which backend a client of a sticky frontend has, and forgets after
//! the time-out. It would also go on sending clients to a backend that is gone; so these entries
//! are deleted in the transaction that takes the backend away.

use std::collections::BTreeSet;

use super::codec::{decode_affinity_key, decode_value, table_family};
use crate::model::Family;
use crate::nft::{Batch, DumpedElement, Elements, Error, Kernel};
use crate::plan::{Desired, Frontend, FrontendKey, Set, TABLE, Value};

/// Where clients may have to forget backends.
#[derive(Debug, Clone, Default)]
pub(super) struct Forget {
    /// Families in which a sticky frontend loses a backend, or itself goes.
    pub(super) families: BTreeSet<Family>,
    /// Frontends whose main pool lost a backend to the short circuit, as when the policy becomes
    /// Local: a client from outside may not keep it. An entry does not say which kind its client
    /// is, so here only the main pool counts.
    pub(super) narrowed: BTreeSet<FrontendKey>,
}

impl Forget {
    /// Adds what another one names.
    pub(super) fn merge(&mut self, other: &Forget) {
        self.families.extend(&other.families);
        self.narrowed.extend(&other.narrowed);
    }
}

/// Adds to the batch what deletes all entries of a family that name a backend which the frontend
/// does not have any more.
///
/// An entry can time out between the listing and the commit, and deleting what is not there fails
/// the transaction (DESTROYSETELEM, which would not, came with kernel 6.3). So every entry is added
/// first, which does nothing if it is there, and then deleted.
pub(super) fn forget_gone(
    kernel: &mut dyn Kernel,
    family: Family,
    desired: &Desired,
    narrowed: &BTreeSet<FrontendKey>,
    batch: &mut Batch,
) -> Result<(), Error> {
    let table = table_family(family);
    let set = Set::Affinity.name();
    let mut gone = Elements::new();
    kernel.elements(table, TABLE, set, &mut |element| {
        if !is_kept(family, desired, narrowed, &element) {
            gone.push(element.key, element.data, None);
        }
    })?;
    batch.add_elements(table, TABLE, set, &gone);
    batch.delete_elements(table, TABLE, set, &gone);
    Ok(())
}

/// True if the frontend still has the backend that an entry names.
pub(super) fn is_kept(
    family: Family,
    desired: &Desired,
    narrowed: &BTreeSet<FrontendKey>,
    entry: &DumpedElement<'_>,
) -> bool {
    let value = entry.data.and_then(|data| decode_value(family, data));
    let keys = decode_affinity_key(family, entry.key);
    let kept = keys.into_iter().flatten().find_map(|key| {
        let frontend = desired.frontend(key).filter(|f| f.affinity.is_some())?;
        let pools = if narrowed.contains(&key) { 1 } else { 2 };
        Some(has_backend(frontend, pools, value.as_ref()))
    });
    kept == Some(true)
}

/// Looks in so many of the frontend's pools, the main one first. Planned pools are in order.
fn has_backend(frontend: &Frontend, pools: usize, value: Option<&Value>) -> bool {
    let Some(Value::Backend(backend)) = value else { return false };
    frontend.all_pools().take(pools).any(|pool| pool.binary_search(backend).is_ok())
}
