//! The objects of a table, as the kernel lists them.

use super::element::{Age, ElementData};
use super::uapi::{
    NFT_DATA_VERDICT, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE,
    NFTA_CHAIN_TYPE, NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS, NFTA_DATA_VALUE, NFTA_DATA_VERDICT,
    NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_RULE_CHAIN,
    NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_USERDATA, NFTA_SET_DATA_LEN,
    NFTA_SET_DATA_TYPE, NFTA_SET_DESC, NFTA_SET_DESC_SIZE, NFTA_SET_ELEM_DATA,
    NFTA_SET_ELEM_EXPIRATION, NFTA_SET_ELEM_EXPR, NFTA_SET_ELEM_EXPRESSIONS, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_KEY_END, NFTA_SET_ELEM_TIMEOUT, NFTA_SET_ELEM_USERDATA, NFTA_SET_FLAGS,
    NFTA_SET_KEY_LEN, NFTA_SET_KEY_TYPE, NFTA_SET_NAME, NFTA_SET_TIMEOUT, NFTA_TABLE_FLAGS,
    NFTA_TABLE_NAME, NFTA_TABLE_OWNER, NFTA_TABLE_USERDATA,
};
use super::{Expr, SetType, VERDICTS, Verdict, userdata};
use crate::attr::{Attr, Attrs};

/// A table in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedTable {
    /// Its name.
    pub name: String,
    /// Its flags (`NFT_TABLE_F_*`).
    pub flags: u32,
    /// Its comment.
    pub comment: Option<String>,
    /// The netlink port of the socket that owns it.
    pub owner: Option<u32>,
}

impl DumpedTable {
    /// Reads a table from the attributes of its message.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>) -> Option<DumpedTable> {
        Some(DumpedTable {
            name: attrs.text(NFTA_TABLE_NAME)?.to_owned(),
            flags: attrs.be32(NFTA_TABLE_FLAGS).unwrap_or(0),
            comment: attrs
                .find(NFTA_TABLE_USERDATA)
                .and_then(|a| userdata::comment(a.payload))
                .map(str::to_owned),
            owner: attrs.be32(NFTA_TABLE_OWNER),
        })
    }
}

/// A chain in the kernel. Two are equal if they have the same name and the same base chain
/// properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedChain {
    /// Its name.
    pub name: String,
    /// Type, hook number, priority and policy of a base chain.
    pub base: Option<(String, u32, i32, u32)>,
}

impl DumpedChain {
    /// Reads a chain; `None` if it belongs to another table.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>, table: &str) -> Option<DumpedChain> {
        if attrs.text(NFTA_CHAIN_TABLE)? != table {
            return None;
        }
        let base = attrs.find(NFTA_CHAIN_HOOK).and_then(|hook| {
            Some((
                attrs.text(NFTA_CHAIN_TYPE)?.to_owned(),
                hook.children().be32(NFTA_HOOK_HOOKNUM)?,
                hook.children().be32(NFTA_HOOK_PRIORITY)? as i32,
                attrs.be32(NFTA_CHAIN_POLICY).unwrap_or(libc::NF_ACCEPT as u32),
            ))
        });
        Some(DumpedChain { name: attrs.text(NFTA_CHAIN_NAME)?.to_owned(), base })
    }
}

/// A set or map in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedSet {
    /// Its name.
    pub name: String,
    pub(super) flags: u32,
    /// The type and length of keys.
    pub(super) key: (u32, u32),
    data: Option<(u32, u32)>,
    /// The timeout of its elements in milliseconds, if they expire.
    pub timeout: Option<u64>,
    /// The maximum number of elements; `None` for no limit.
    pub size: Option<u32>,
}

impl DumpedSet {
    /// Reads a set from the attributes of its message.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>) -> Option<DumpedSet> {
        Some(DumpedSet {
            name: attrs.text(NFTA_SET_NAME)?.to_owned(),
            flags: attrs.be32(NFTA_SET_FLAGS).unwrap_or(0),
            key: (attrs.be32(NFTA_SET_KEY_TYPE)?, attrs.be32(NFTA_SET_KEY_LEN)?),
            data: attrs.be32(NFTA_SET_DATA_TYPE).map(|kind| match kind {
                NFT_DATA_VERDICT => VERDICTS,
                kind => (kind, attrs.be32(NFTA_SET_DATA_LEN).unwrap_or(0)),
            }),
            timeout: attrs.be64(NFTA_SET_TIMEOUT).filter(|it| *it > 0),
            size: attrs
                .find(NFTA_SET_DESC)
                .and_then(|a| a.children().be32(NFTA_SET_DESC_SIZE))
                .filter(|it| *it > 0),
        })
    }

    /// True if the set is defined like this, whatever its size.
    #[must_use]
    pub fn is(&self, kind: &SetType) -> bool {
        self.data == kind.data
            && self.key == (kind.key_type, kind.key_length)
            && self.flags == kind.flags()
    }
}

/// A rule in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedRule {
    /// The chain of the rule.
    pub chain: String,
    /// The number that the kernel gave it.
    pub handle: u64,
    /// The comment, which nft shows.
    pub comment: Option<String>,
    /// The expressions, in the order of evaluation.
    pub exprs: Vec<Expr>,
}

impl DumpedRule {
    /// Reads a rule from the attributes of its message.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>) -> Option<DumpedRule> {
        Some(DumpedRule {
            chain: attrs.text(NFTA_RULE_CHAIN)?.to_owned(),
            handle: attrs.be64(NFTA_RULE_HANDLE).unwrap_or(0),
            comment: attrs
                .find(NFTA_RULE_USERDATA)
                .and_then(|a| userdata::comment(a.payload))
                .map(str::to_owned),
            exprs: attrs.find(NFTA_RULE_EXPRESSIONS).map_or(Vec::new(), |a| Expr::all(&a)),
        })
    }

    /// Returns the chains of the rule's own `goto` and `jump` verdicts, without those in maps.
    /// (`iptables-nft` writes `-j` and `-g` this way.)
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.exprs.iter().filter_map(|expr| match expr {
            Expr::Verdict(verdict) => verdict.chain(),
            _ => None,
        })
    }

    /// Returns true if the rule rejects packets: the verdict `drop` in a trace is a refusal then.
    #[must_use]
    pub fn rejects(&self) -> bool {
        self.exprs.iter().any(|expr| matches!(expr, Expr::Reject { .. }))
    }
}

/// An element in the kernel, or for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DumpedElement<'a> {
    /// Its key, each field padded to four bytes. Empty for the catch-all element.
    pub key: &'a [u8],
    /// The value in a map.
    pub data: Option<ElementData<'a>>,
    /// Its comment.
    pub comment: Option<&'a str>,
    /// The end of its range, in a set of ranges. Such an element has the keys with every field between
    /// those of both, inclusive.
    pub key_end: Option<&'a [u8]>,
    /// The timeout of an element that expires.
    pub age: Option<Age>,
    /// The counter of an element of a set with counters.
    pub counter: Option<Counter>,
}

/// The counter of an element or a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counter {
    /// The number of packets.
    pub packets: u64,
    /// The number of their bytes.
    pub bytes: u64,
}

impl Counter {
    /// Reads a counter from its expression; `None` for another expression.
    fn parse(expression: &Attr<'_>) -> Option<Counter> {
        let attrs = expression.children();
        if attrs.text(NFTA_EXPR_NAME)? != "counter" {
            return None;
        }
        let data = attrs.find(NFTA_EXPR_DATA)?.children();
        Some(Counter {
            packets: data.be64(NFTA_COUNTER_PACKETS)?,
            bytes: data.be64(NFTA_COUNTER_BYTES)?,
        })
    }

    /// Reads the counter of an element, which has one expression or a list of them (Linux 5.11).
    fn of_element(attrs: &Attrs<'_>) -> Option<Counter> {
        expressions(attrs).find_map(|expression| Counter::parse(&expression))
    }
}

/// Returns the expressions of an element.
pub(super) fn expressions<'a>(attrs: &Attrs<'a>) -> impl Iterator<Item = Attr<'a>> + use<'a> {
    let list = attrs.find(NFTA_SET_ELEM_EXPRESSIONS);
    let list = list.into_iter().flat_map(|list| list.children());
    attrs.find(NFTA_SET_ELEM_EXPR).into_iter().chain(list)
}

impl<'a> DumpedElement<'a> {
    /// Reads an element from its attribute in the list.
    #[must_use]
    pub fn parse(element: &Attr<'a>) -> Option<DumpedElement<'a>> {
        let attrs = element.children();
        let key = match attrs.find(NFTA_SET_ELEM_KEY) {
            Some(key) => key.children().find(NFTA_DATA_VALUE)?.payload,
            None => &[],
        };
        let key_end = attrs.find(NFTA_SET_ELEM_KEY_END);
        let key_end = key_end.and_then(|a| a.children().find(NFTA_DATA_VALUE));
        Some(DumpedElement {
            key,
            data: attrs.find(NFTA_SET_ELEM_DATA).and_then(|a| parse_data(&a.children())),
            comment: attrs.find(NFTA_SET_ELEM_USERDATA).and_then(|a| userdata::comment(a.payload)),
            key_end: key_end.map(|a| a.payload),
            age: attrs.be64(NFTA_SET_ELEM_TIMEOUT).map(|timeout| Age {
                timeout,
                left: attrs.be64(NFTA_SET_ELEM_EXPIRATION).unwrap_or(timeout),
            }),
            counter: Counter::of_element(&attrs),
        })
    }
}

pub(super) fn parse_data<'a>(data: &Attrs<'a>) -> Option<ElementData<'a>> {
    if let Some(value) = data.find(NFTA_DATA_VALUE) {
        return Some(ElementData::Value(value.payload));
    }
    Verdict::parse(&data.find(NFTA_DATA_VERDICT)?).map(ElementData::Verdict)
}
