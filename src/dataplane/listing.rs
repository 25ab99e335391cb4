//! Listings that tolerate concurrent commits of other processes, and lookups of single elements.

use foldhash::HashMap;
use nfnetlink::nft::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTimeouts, Element, Error, Kernel,
};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::{Set, TABLE};

use super::codec::{Bytes, table_family};

/// The number of listings of a set that commits of other processes interrupt.
const ATTEMPTS: usize = 3;

/// What a table has besides elements: a few hundred messages.
#[derive(Default)]
pub(super) struct Structure {
    pub(super) sets: Vec<DumpedSet>,
    pub(super) timeouts: Vec<DumpedTimeouts>,
    pub(super) chains: Vec<DumpedChain>,
    /// The rules by their chain.
    pub(super) rules: HashMap<String, Vec<DumpedRule>>,
}

impl Structure {
    pub(super) fn read(kernel: &mut dyn Kernel, family: Family) -> Result<Structure, Error> {
        let table = table_family(family);
        let mut structure = Structure {
            sets: kernel.sets(table, TABLE)?,
            timeouts: kernel.timeouts(table, TABLE)?,
            chains: kernel.chains(table, TABLE)?,
            rules: HashMap::default(),
        };
        for rule in kernel.rules(table, TABLE)? {
            structure.rules.entry(rule.chain.clone()).or_default().push(rule);
        }
        Ok(structure)
    }
}

/// Lists a set. Returns true if another process has committed meanwhile, nearly always to a table
/// of its own.
pub(super) fn list(
    kernel: &mut dyn Kernel,
    family: Family,
    set: Set,
    each: &mut dyn FnMut(DumpedElement<'_>),
) -> Result<bool, Error> {
    match kernel.elements(table_family(family), TABLE, set.name(), each) {
        Ok(()) => Ok(false),
        Err(Error::Interrupted) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Lists a set by its name, again if commits of other processes interrupt it: `each` may get an
/// element more than once. The last listing counts.
pub(super) fn list_again(
    kernel: &mut dyn Kernel,
    family: Family,
    set: &str,
    each: &mut dyn FnMut(DumpedElement<'_>),
) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        match kernel.elements(table_family(family), TABLE, set, each) {
            Err(Error::Interrupted) => {}
            result => return result,
        }
    }
    Ok(())
}

/// Looks up elements by their keys, with one result per key. A set or table that does not exist has
/// no elements.
pub(super) fn look_up(
    kernel: &mut dyn Kernel,
    family: Family,
    set: Set,
    keys: &[Bytes],
) -> Result<Vec<Option<Element>>, Error> {
    let slices: Vec<&[u8]> = keys.iter().map(Bytes::as_slice).collect();
    match kernel.lookup(table_family(family), TABLE, set.name(), &slices) {
        Err(Error::Request { errno: Errno::ENOENT, .. }) => Ok(vec![None; keys.len()]),
        found => found,
    }
}
