//! All that a kernel lists of a table, as a value.

use std::collections::BTreeMap;

use nfnetlink::nft::{
    DumpedChain, DumpedRule, DumpedSet, DumpedTable, ElementData, Error, Kernel, TableFamily,
};

/// All that a kernel lists of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The table itself.
    pub table: DumpedTable,
    /// Its chains, in the order in which they were added.
    pub chains: Vec<DumpedChain>,
    /// Its rules, chain by chain.
    pub rules: Vec<DumpedRule>,
    /// Its sets, in the order in which they were added.
    pub sets: Vec<DumpedSet>,
    /// The elements of each set, in order.
    pub elements: BTreeMap<String, Vec<ListedElement>>,
}

/// An element. Two are in order by their keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedElement {
    /// Its key.
    pub key: Vec<u8>,
    /// The end of its range.
    pub key_end: Option<Vec<u8>>,
    /// The data of a map, or the chain that it goes to; empty for other verdicts.
    pub data: Option<Vec<u8>>,
    /// Its comment.
    pub comment: Option<String>,
    /// The packets and bytes that it has counted, if it counts.
    pub counter: Option<(u64, u64)>,
}

impl Listing {
    /// Lists a table; `None` if there is none of that name.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn of(
        kernel: &mut dyn Kernel,
        family: TableFamily,
        name: &str,
    ) -> Result<Option<Listing>, Error> {
        let Some(table) = kernel.table(family, name)? else { return Ok(None) };
        let sets = kernel.sets(family, name)?;
        let mut elements = BTreeMap::new();
        for set in &sets {
            let mut listed = Vec::new();
            kernel.elements(family, name, &set.name, &mut |element| {
                listed.push(ListedElement {
                    key: element.key.to_vec(),
                    key_end: element.key_end.map(<[u8]>::to_vec),
                    data: element.data.map(|data| match data {
                        ElementData::Value(value) => value.to_vec(),
                        ElementData::Verdict(verdict) => verdict.chain().unwrap_or_default().into(),
                    }),
                    comment: element.comment.map(str::to_owned),
                    counter: element.counter.map(|counter| (counter.packets, counter.bytes)),
                });
            })?;
            listed.sort();
            elements.insert(set.name.clone(), listed);
        }
        let chains = kernel.chains(family, name)?;
        let rules = kernel.rules(family, name)?;
        Ok(Some(Listing { table, chains, rules, sets, elements }))
    }
}
