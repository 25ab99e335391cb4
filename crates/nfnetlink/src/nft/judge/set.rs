//! The sets and maps that rules look keys up in.

use super::registers::Bits;
use super::truth::Truth;
use crate::attr::{Attr, Attrs};
use crate::nft::Verdict;
use crate::nft::expr_decode::value;
use crate::nft::uapi::{
    NFT_SET_CONCAT, NFT_SET_ELEM_CATCHALL, NFTA_DATA_VERDICT, NFTA_EXPR_NAME, NFTA_SET_DESC,
    NFTA_SET_DESC_CONCAT, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_EXPR, NFTA_SET_ELEM_EXPRESSIONS,
    NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_KEY_END, NFTA_SET_FIELD_LEN,
    NFTA_SET_FLAGS, NFTA_SET_KEY_LEN,
};

/// The definition of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    flags: u32,
    key_length: usize,
    /// The lengths of the fields of a concatenation of ranges; empty for other keys.
    fields: Vec<usize>,
}

/// A set or map with its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Set {
    definition: Definition,
    elements: Vec<Element>,
    catchall: Option<Element>,
    /// Why the set cannot be searched.
    unknown: Option<&'static str>,
}

/// An element, whose key is a range.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Element {
    start: Vec<u8>,
    end: End,
    data: Data,
    /// True if the element has an expression that may not match.
    is_limited: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// The only key is `start`.
    Single,
    /// The last key.
    Last(Vec<u8>),
    /// The first key after the range.
    Before(Vec<u8>),
    /// All keys from `start`.
    Open,
}

/// The data of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    None,
    Value(Vec<u8>),
    Verdict(Verdict),
}

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    /// Whether the set has the key.
    pub(super) found: Truth,
    /// The data of all elements that the key may belong to.
    pub(super) data: Vec<&'a Data>,
}

impl Definition {
    /// Reads the definition from the attributes of the set's message.
    pub(super) fn parse(attrs: &Attrs<'_>) -> Option<Definition> {
        let number = |kind| attrs.find(kind).and_then(|it| it.be32());
        let fields =
            attrs.find(NFTA_SET_DESC).and_then(|it| it.children().find(NFTA_SET_DESC_CONCAT));
        let length = |field: Attr<'_>| field.children().find(NFTA_SET_FIELD_LEN)?.be32();
        let fields = fields.iter().flat_map(Attr::children);
        Some(Definition {
            flags: number(NFTA_SET_FLAGS).unwrap_or(0),
            key_length: number(NFTA_SET_KEY_LEN)? as usize,
            fields: fields.filter_map(length).map(|length| length as usize).collect(),
        })
    }
}

#[cfg(any(test, feature = "fuzz"))]
impl Definition {
    /// Returns definitions of a set of keys, of ranges and of concatenated ranges.
    pub(super) fn all_kinds() -> [Definition; 3] {
        let define = |flags, fields: &[usize]| Definition {
            flags,
            key_length: 4 * fields.len().max(1),
            fields: fields.to_vec(),
        };
        [
            define(0, &[]),
            define(libc::NFT_SET_INTERVAL as u32, &[]),
            define(libc::NFT_SET_INTERVAL as u32, &[4, 2]),
        ]
    }
}

/// An element as it is listed: a key, or one end of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    element: Element,
    is_end: bool,
    is_catchall: bool,
}

impl Listed {
    /// Reads an element from its attribute in the list.
    pub(super) fn parse(element: &Attr<'_>) -> Option<Listed> {
        let attrs = element.children();
        let flags = attrs.find(NFTA_SET_ELEM_FLAGS).and_then(|it| it.be32()).unwrap_or(0);
        let is_catchall = flags & NFT_SET_ELEM_CATCHALL != 0;
        let start = match attrs.find(NFTA_SET_ELEM_KEY) {
            Some(key) => value(Some(key))?,
            None if is_catchall => Vec::new(),
            None => return None,
        };
        let end = value(attrs.find(NFTA_SET_ELEM_KEY_END));
        let data = attrs.find(NFTA_SET_ELEM_DATA).map_or(Data::None, |data| {
            let verdict = || {
                let verdict = Verdict::parse(&data.children().find(NFTA_DATA_VERDICT)?)?;
                Some(Data::Verdict(verdict.with(|chain| (*chain).to_owned())))
            };
            value(Some(data)).map(Data::Value).or_else(verdict).unwrap_or(Data::None)
        });
        let single = attrs.find(NFTA_SET_ELEM_EXPR);
        let list = attrs.find(NFTA_SET_ELEM_EXPRESSIONS);
        let list = list.iter().flat_map(Attr::children);
        let is_limited = single.into_iter().chain(list).any(|expression| {
            let name = expression.children().find(NFTA_EXPR_NAME);
            !matches!(name.and_then(|it| it.text()), Some("counter" | "last"))
        });
        let end = end.map_or(End::Single, End::Last);
        let element = Element { start, end, data, is_limited };
        Some(Listed {
            element,
            is_end: flags & libc::NFT_SET_ELEM_INTERVAL_END as u32 != 0,
            is_catchall,
        })
    }
}

impl Set {
    pub(super) fn new(definition: Definition, listed: Vec<Listed>, complete: bool) -> Set {
        let (catchall, mut listed): (Vec<_>, Vec<_>) =
            listed.into_iter().partition(|it| it.is_catchall);
        let is_ranged = definition.flags & libc::NFT_SET_INTERVAL as u32 != 0;
        let is_concatenated = definition.flags & NFT_SET_CONCAT != 0 || definition.fields.len() > 1;
        let unknown = if !complete {
            Some("has too many elements to read")
        } else if definition.flags & libc::NFT_SET_EVAL as u32 != 0 {
            Some("is changed by packets")
        } else if is_ranged && is_concatenated && definition.fields.is_empty() {
            Some("has keys of unknown fields")
        } else {
            None
        };
        let elements = if is_ranged && !is_concatenated {
            // At one key, the end of a range comes before the start of the next.
            listed
                .sort_by(|a, b| (&a.element.start, !a.is_end).cmp(&(&b.element.start, !b.is_end)));
            ranges(listed)
        } else {
            listed.into_iter().map(|it| it.element).collect()
        };
        let catchall = catchall.into_iter().next().map(|it| it.element);
        Set { definition, elements, catchall, unknown }
    }

    /// Returns the length of keys, in bytes.
    pub(super) fn key_length(&self) -> usize {
        self.definition.key_length
    }

    /// Returns why the set cannot be searched, if it cannot.
    pub(super) fn unknown(&self) -> Option<&'static str> {
        self.unknown
    }

    /// Searches for a key.
    pub(super) fn find(&self, key: &Bits) -> Found<'_> {
        let mut possible = Vec::new();
        let mut is_certain = false;
        for element in &self.elements {
            match self.contains(element, key) {
                Truth::No => {}
                // Concatenations of ranges may overlap, other keys do not.
                Truth::Yes if !element.is_limited && self.definition.fields.is_empty() => {
                    return Found { found: Truth::Yes, data: vec![&element.data] };
                }
                contains => {
                    is_certain |= contains == Truth::Yes && !element.is_limited;
                    possible.push(&element.data);
                }
            }
        }
        if is_certain {
            return Found { found: Truth::Yes, data: possible };
        }
        let found = match &self.catchall {
            Some(element) => {
                possible.push(&element.data);
                if element.is_limited || self.elements.iter().any(|it| it.is_limited) {
                    Truth::Unknown
                } else {
                    Truth::Yes
                }
            }
            None if possible.is_empty() => Truth::No,
            None => Truth::Unknown,
        };
        Found { found, data: possible }
    }

    fn contains(&self, element: &Element, key: &Bits) -> Truth {
        match &element.end {
            End::Single => key.equals(&element.start),
            End::Before(end) => !key.is_less(&element.start) & key.is_less(end),
            End::Open => !key.is_less(&element.start),
            End::Last(last) if self.definition.fields.is_empty() => {
                key.is_between(&element.start, last)
            }
            End::Last(last) => {
                let mut offset = 0;
                let mut contains = Truth::Yes;
                for length in &self.definition.fields {
                    let end = offset + length;
                    let (Some(from), Some(to)) =
                        (element.start.get(offset..end), last.get(offset..end))
                    else {
                        return Truth::Unknown;
                    };
                    contains = contains & key.slice(offset, *length).is_between(from, to);
                    offset = end.next_multiple_of(4);
                }
                contains
            }
        }
    }
}

/// Makes ranges of the sorted starts and ends.
fn ranges(listed: Vec<Listed>) -> Vec<Element> {
    let mut ranges: Vec<Element> = Vec::new();
    let mut is_open = false;
    for Listed { mut element, is_end, .. } in listed {
        if let Some(last) = ranges.last_mut().filter(|_| is_open) {
            last.end = End::Before(element.start.clone());
        }
        is_open = !is_end;
        if is_open {
            if element.end == End::Single {
                element.end = End::Open;
            } else {
                is_open = false;
            }
            ranges.push(element);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_cannot_be_searched_are_known() {
        let [mut definition, ..] = Definition::all_kinds();
        assert_eq!(Set::new(definition.clone(), Vec::new(), true).unknown(), None);
        assert!(Set::new(definition.clone(), Vec::new(), false).unknown().is_some());
        definition.flags = libc::NFT_SET_EVAL as u32;
        assert!(Set::new(definition, Vec::new(), true).unknown().is_some());
    }
}
