//! Tables, chains, rules and sets as the fake holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use nfnetlink::attr::{self, Attr, Attrs};
use nfnetlink::nft::{
    Counter, DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, DumpedTimeouts,
};

use crate::uapi::*;

/// All tables of a namespace, by family and name. Cheap to copy: what a transaction does not touch
/// is shared with the state before.
#[derive(Clone, Default)]
pub(crate) struct Tables(pub(crate) BTreeMap<(u8, String), Table>);

/// A table.
#[derive(Clone)]
pub(crate) struct Table {
    /// As it is listed.
    pub(crate) head: DumpedTable,
    /// Its flags change with the transaction under way (`__NFT_TABLE_F_UPDATE`).
    pub(crate) updating: bool,
    /// The transaction under way changed a chain, or deleted a base chain.
    pub(crate) chains_changed: bool,
    /// In the order in which they were added, as the kernel lists them.
    pub(crate) chains: Vec<Arc<Chain>>,
    /// Likewise.
    pub(crate) sets: Vec<Arc<Set>>,
    /// The attributes of its objects as they were sent, by name.
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// The last number that was given to a rule.
    pub(crate) handles: u64,
}

/// A chain with its rules.
#[derive(Clone)]
pub(crate) struct Chain {
    /// As it is listed.
    pub(crate) head: DumpedChain,
    pub(crate) rules: Vec<Rule>,
}

/// A rule.
#[derive(Clone)]
pub(crate) struct Rule {
    /// As it is listed, in what is asked for.
    pub(crate) head: DumpedRule,
    /// The sets that it looks into.
    pub(crate) sets: Vec<String>,
}

/// A set or map.
#[derive(Clone)]
pub(crate) struct Set {
    /// As it is listed.
    pub(crate) head: DumpedSet,
    pub(crate) kind: Kind,
    pub(crate) elements: BTreeMap<Vec<u8>, Element>,
    /// How many elements go to each chain.
    pub(crate) targets: BTreeMap<String, usize>,
    /// Counts elements that were ever added: ranges are looked through in this order.
    pub(crate) added: u64,
}

/// The definition of a set: what two of the same name must agree on.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) flags: u32,
    pub(crate) key: (u32, u32),
    pub(crate) data: Option<(u32, u32)>,
    /// The lengths of the fields of a concatenation, in bytes.
    pub(crate) fields: Vec<u32>,
    /// The name of the expression that each element has.
    pub(crate) expression: Option<String>,
}

/// An element.
#[derive(Clone)]
pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    pub(crate) key_end: Option<Vec<u8>>,
    pub(crate) data: Option<Data>,
    /// What it has counted, in a set that counts or with a counter of its own.
    pub(crate) counter: Option<Counter>,
    /// Its attributes as they were sent.
    pub(crate) raw: Vec<u8>,
    pub(crate) order: u64,
}

/// The right side of a map element.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Data {
    Value(Vec<u8>),
    Verdict(i32, Option<String>),
}

impl Table {
    pub(crate) fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.head.name == name).map(|chain| &**chain)
    }

    pub(crate) fn chain_mut(&mut self, name: &str) -> Option<&mut Chain> {
        self.chains.iter_mut().find(|chain| chain.head.name == name).map(Arc::make_mut)
    }

    pub(crate) fn set(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| set.head.name == name).map(|set| &**set)
    }

    pub(crate) fn set_mut(&mut self, name: &str) -> Option<&mut Set> {
        self.sets.iter_mut().find(|set| set.head.name == name).map(Arc::make_mut)
    }

    /// How many rules and elements go to a chain.
    pub(crate) fn uses(&self, chain: &str) -> usize {
        let rules = self.chains.iter().flat_map(|chain| &chain.rules);
        let targets = rules.flat_map(|rule| rule.head.targets());
        let rules = targets.filter(|target| *target == chain).count();
        let elements = self.sets.iter().filter_map(|set| set.targets.get(chain)).sum::<usize>();
        rules + elements
    }

    pub(crate) fn timeouts(&self, name: &str) -> Vec<DumpedTimeouts> {
        let parse = |sent: &Vec<u8>| DumpedTimeouts::parse(&Attrs::new(sent), name);
        self.objects.values().filter_map(parse).collect()
    }
}

impl Set {
    pub(crate) fn has_ranges(&self) -> bool {
        let ranges = SET_F_INTERVAL | NFT_SET_CONCAT;
        self.kind.flags & ranges == ranges
    }

    /// True if what a lookup finds here fits into that register. Without one a map is just a set.
    pub(crate) fn answers(&self, register: Option<u32>) -> bool {
        const VERDICT: u32 = libc::NFT_REG_VERDICT as u32;
        match (self.kind.data, register) {
            (_, None) => true,
            (Some((NFT_DATA_VERDICT, _)), Some(register)) => register == VERDICT,
            (Some(_), Some(register)) => register != VERDICT,
            _ => false,
        }
    }

    /// The oldest element whose range holds that key.
    pub(crate) fn holding(&self, key: &[u8]) -> Option<&Element> {
        let within = |element: &&Element| {
            let end = element.end();
            let mut start = 0;
            self.kind.fields.iter().all(|length| {
                let field = start..start + *length as usize;
                start += (*length as usize).next_multiple_of(4);
                element.key[field.clone()] <= key[field.clone()] && key[field.clone()] <= end[field]
            })
        };
        self.elements.values().filter(within).min_by_key(|element| element.order)
    }

    pub(crate) fn insert(&mut self, mut element: Element) {
        if let Some(Data::Verdict(_, Some(chain))) = &element.data {
            *self.targets.entry(chain.clone()).or_insert(0) += 1;
        }
        self.added += 1;
        element.order = self.added;
        self.elements.insert(element.place(), element);
    }

    pub(crate) fn remove(&mut self, element: &Element) {
        if let Some(Data::Verdict(_, Some(chain))) = &element.data
            && let Some(count) = self.targets.get_mut(chain)
        {
            *count -= 1;
            if *count == 0 {
                self.targets.remove(chain);
            }
        }
        self.elements.remove(&element.place());
    }
}

impl Element {
    /// One that a packet adds, with an hour to go.
    pub(crate) fn learned(key: &[u8], data: &[u8]) -> Element {
        const HOUR: u64 = 3_600_000;
        let mut raw = Vec::new();
        for (kind, value) in [(NFTA_SET_ELEM_KEY, key), (NFTA_SET_ELEM_DATA, data)] {
            attr::put_with(&mut raw, kind, |inside| attr::put(inside, NFTA_DATA_VALUE, value));
        }
        attr::put_be64(&mut raw, NFTA_SET_ELEM_TIMEOUT, 3 * HOUR);
        attr::put_be64(&mut raw, NFTA_SET_ELEM_EXPIRATION, HOUR);
        Element {
            key: key.to_vec(),
            key_end: None,
            data: Some(Data::Value(data.to_vec())),
            counter: None,
            raw,
            order: 0,
        }
    }

    /// The end of its range; the key itself, where it is no range.
    pub(crate) fn end(&self) -> &[u8] {
        self.key_end.as_deref().unwrap_or(&self.key)
    }

    /// Where it is kept: ranges that begin alike are different elements.
    fn place(&self) -> Vec<u8> {
        [&self.key[..], self.key_end.as_deref().unwrap_or(&[])].concat()
    }

    pub(crate) fn dumped(&self) -> Option<DumpedElement<'_>> {
        let sent = Attr { kind: NFTA_LIST_ELEM, payload: &self.raw };
        Some(DumpedElement { counter: self.counter, ..DumpedElement::parse(&sent)? })
    }
}

impl Data {
    /// Reads `NFTA_SET_ELEM_DATA` and its likes.
    pub(crate) fn parse(attrs: &Attrs<'_>) -> Option<Data> {
        if let Some(value) = attrs.find(NFTA_DATA_VALUE) {
            return Some(Data::Value(value.payload.to_vec()));
        }
        let verdict = attrs.find(NFTA_DATA_VERDICT)?.children();
        let code = verdict.find(NFTA_VERDICT_CODE)?.be32()? as i32;
        let chain = verdict.find(NFTA_VERDICT_CHAIN).and_then(|a| a.text()).map(str::to_owned);
        Some(Data::Verdict(code, chain))
    }
}
