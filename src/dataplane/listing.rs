//! Listings that tolerate concurrent commits of other processes, and lookups of single elements.

use foldhash::HashMap;
use nfnetlink::nft::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTimeouts, Error, Kernel,
};
use shunt_core::model::Family;
use shunt_core::plan::{Chain, ChainName, NodeContext, Set, TABLE, base_chains, on_demand_chain};

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

/// Returns what the plan has for the name of a chain.
pub(super) fn planned_chains(
    node_context: &NodeContext,
    family: Family,
) -> impl Fn(ChainName) -> Option<Chain> {
    let base = base_chains(node_context, family).into_iter();
    let base: HashMap<ChainName, Chain> = base.map(|chain| (chain.name, chain)).collect();
    move |name| base.get(&name).cloned().or_else(|| on_demand_chain(name))
}

/// Lists a set. Another process may commit meanwhile, nearly always to a table of its own.
pub(super) fn list(
    kernel: &mut dyn Kernel,
    family: Family,
    set: Set,
    each: &mut dyn FnMut(DumpedElement<'_>),
) -> Result<(), Error> {
    match kernel.elements(table_family(family), TABLE, set.name(), each) {
        Err(Error::Interrupted) => Ok(()),
        result => result,
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

/// Looks up elements by their keys, and calls `each` with the place of a key and its element. A set
/// or table that does not exist has no elements.
pub(super) fn look_up(
    kernel: &mut dyn Kernel,
    family: Family,
    set: Set,
    keys: &[Bytes],
    each: &mut dyn FnMut(usize, DumpedElement<'_>),
) -> Result<(), Error> {
    let slices: Vec<&[u8]> = keys.iter().map(Bytes::as_slice).collect();
    kernel.lookup(table_family(family), TABLE, set.name(), &slices, each)
}
