//! Tables, chains, rules and sets as the fake holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use nfnetlink::attr::{Attr, Attrs};
use nfnetlink::nft::{
    Counter, DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, DumpedTimeouts,
};

use crate::uapi::*;
use crate::wire::Writer;

/// All tables of a namespace, by family and name. Cheap to copy: what a transaction does not touch
/// is shared with the state before.
#[derive(Clone, Default)]
pub(crate) struct Tables(pub(crate) BTreeMap<(u8, String), Table>);

/// A table.
#[derive(Clone, Default)]
pub(crate) struct Table {
    pub(crate) flags: u32,
    pub(crate) owner: Option<u32>,
    pub(crate) userdata: Vec<u8>,
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
    pub(crate) name: String,
    pub(crate) base: Option<Base>,
    pub(crate) rules: Vec<Rule>,
}

/// What makes a base chain.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) kind: String,
    pub(crate) hook: u32,
    pub(crate) priority: i32,
    pub(crate) policy: u32,
}

/// A rule.
#[derive(Clone)]
pub(crate) struct Rule {
    pub(crate) handle: u64,
    /// As they were sent. The kernel's own listing says more, which nobody asks it for.
    pub(crate) expressions: Vec<u8>,
    pub(crate) userdata: Vec<u8>,
    /// The chains that it goes to.
    pub(crate) targets: Vec<String>,
    /// The sets that it looks into.
    pub(crate) sets: Vec<String>,
}

/// A set or map.
#[derive(Clone)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) size: Option<u32>,
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
        self.chains.iter().find(|chain| chain.name == name).map(|chain| &**chain)
    }

    pub(crate) fn chain_mut(&mut self, name: &str) -> Option<&mut Chain> {
        self.chains.iter_mut().find(|chain| chain.name == name).map(Arc::make_mut)
    }

    pub(crate) fn set(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == name).map(|set| &**set)
    }

    pub(crate) fn set_mut(&mut self, name: &str) -> Option<&mut Set> {
        self.sets.iter_mut().find(|set| set.name == name).map(Arc::make_mut)
    }

    /// How many rules and elements go to a chain.
    pub(crate) fn uses(&self, chain: &str) -> usize {
        let rules = self.chains.iter().flat_map(|chain| &chain.rules);
        let rules = rules.flat_map(|rule| &rule.targets).filter(|target| *target == chain).count();
        let elements = self.sets.iter().filter_map(|set| set.targets.get(chain)).sum::<usize>();
        rules + elements
    }

    pub(crate) fn timeouts(&self, name: &str) -> Vec<DumpedTimeouts> {
        let parse = |sent: &Vec<u8>| DumpedTimeouts::parse(&Attrs::new(sent), name);
        self.objects.values().filter_map(parse).collect()
    }

    pub(crate) fn dumped(&self, name: &str) -> Option<DumpedTable> {
        let mut attrs = Writer::default()
            .text(NFTA_TABLE_NAME, name)
            .number(NFTA_TABLE_FLAGS, self.flags)
            .put(NFTA_TABLE_USERDATA, &self.userdata);
        if let Some(owner) = self.owner {
            attrs = attrs.number(NFTA_TABLE_OWNER, owner);
        }
        DumpedTable::parse(&attrs.attrs())
    }
}

impl Chain {
    pub(crate) fn dumped(&self, table: &str) -> Option<DumpedChain> {
        let mut attrs =
            Writer::default().text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, &self.name);
        if let Some(base) = &self.base {
            let hook = Writer::default()
                .number(NFTA_HOOK_HOOKNUM, base.hook)
                .number(NFTA_HOOK_PRIORITY, base.priority as u32);
            attrs = attrs
                .nest(NFTA_CHAIN_HOOK, hook)
                .number(NFTA_CHAIN_POLICY, base.policy)
                .text(NFTA_CHAIN_TYPE, &base.kind);
        }
        DumpedChain::parse(&attrs.attrs(), table)
    }
}

impl Rule {
    pub(crate) fn dumped(&self, chain: &str) -> Option<DumpedRule> {
        let attrs = Writer::default()
            .text(NFTA_RULE_CHAIN, chain)
            .long(NFTA_RULE_HANDLE, self.handle)
            .put(NFTA_RULE_EXPRESSIONS, &self.expressions)
            .put(NFTA_RULE_USERDATA, &self.userdata);
        DumpedRule::parse(&attrs.attrs())
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

    pub(crate) fn dumped(&self) -> Option<DumpedSet> {
        let mut attrs = Writer::default()
            .text(NFTA_SET_NAME, &self.name)
            .number(NFTA_SET_FLAGS, self.kind.flags)
            .number(NFTA_SET_KEY_TYPE, self.kind.key.0)
            .number(NFTA_SET_KEY_LEN, self.kind.key.1);
        if let Some((kind, length)) = self.kind.data {
            attrs = attrs.number(NFTA_SET_DATA_TYPE, kind).number(NFTA_SET_DATA_LEN, length);
        }
        if let Some(size) = self.size {
            attrs = attrs.nest(NFTA_SET_DESC, Writer::default().number(NFTA_SET_DESC_SIZE, size));
        }
        DumpedSet::parse(&attrs.attrs())
    }
}

impl Element {
    /// One that a packet adds, with an hour to go.
    pub(crate) fn learned(key: &[u8], data: &[u8]) -> Element {
        const HOUR: u64 = 3_600_000;
        let value = |value: &[u8]| Writer::default().put(NFTA_DATA_VALUE, value);
        let raw = Writer::default()
            .nest(NFTA_SET_ELEM_KEY, value(key))
            .nest(NFTA_SET_ELEM_DATA, value(data))
            .long(NFTA_SET_ELEM_TIMEOUT, 3 * HOUR)
            .long(NFTA_SET_ELEM_EXPIRATION, HOUR);
        Element {
            key: key.to_vec(),
            key_end: None,
            data: Some(Data::Value(data.to_vec())),
            counter: None,
            raw: raw.into_bytes(),
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
        let sent = Attr { kind: NFTA_LIST_ELEM, nested: true, payload: &self.raw };
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
