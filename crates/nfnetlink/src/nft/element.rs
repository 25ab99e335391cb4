//! Elements of sets and maps, encoded without libnftnl: 2 to 9 times faster, and there may be
//! hundreds of thousands.

use super::uapi::{
    NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA,
    NFTA_EXPR_NAME, NFTA_LIST_ELEM, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_EXPIRATION,
    NFTA_SET_ELEM_EXPR, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_KEY_END, NFTA_SET_ELEM_TIMEOUT,
    NFTA_SET_ELEM_USERDATA,
};
use super::{Counter, Verdict, userdata};
use crate::attr::{align, nest, put, put_be64, put_text};

/// The longest element list of one message, in bytes. The list is one attribute, whose length field
/// has 16 bits: beyond 65 535 bytes, it would silently wrap around.
const LIST_LIMIT: usize = 64_000;

/// The data of a map element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementData<'a> {
    /// Bytes, each field padded to four.
    Value(&'a [u8]),
    /// A verdict.
    Verdict(Verdict<&'a str>),
}

/// The timeout of an element, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    /// The time between the last use and the expiry (`NFTA_SET_ELEM_TIMEOUT`).
    pub timeout: u64,
    /// The remaining time (`NFTA_SET_ELEM_EXPIRATION`).
    pub left: u64,
}

/// Encoded elements for one set and one operation, split into lists that fit a message.
#[derive(Debug, Clone)]
pub struct Elements {
    bytes: Vec<u8>,
    cuts: Vec<usize>,
    list_start: usize,
    count: usize,
    limit: usize,
    /// The lengths of key and value of the last element, if it has nothing else.
    plain: Option<(usize, usize)>,
}

impl Default for Elements {
    fn default() -> Elements {
        Elements {
            bytes: Vec::new(),
            cuts: Vec::new(),
            list_start: 0,
            count: 0,
            limit: LIST_LIMIT,
            plain: None,
        }
    }
}

impl Elements {
    /// Makes an empty list.
    #[must_use]
    pub fn new() -> Elements {
        Elements::default()
    }

    /// Returns the number of elements, over all lists.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an element. The caller pads each field of the key and of the data to four bytes.
    pub fn push(&mut self, key: &[u8], data: Option<ElementData<'_>>, comment: Option<&str>) {
        self.push_range(key, None, data, comment);
    }

    /// Adds an element of a set of ranges. It matches keys with every field between those of `key`
    /// and `key_end`, inclusive.
    pub fn push_range(
        &mut self,
        key: &[u8],
        key_end: Option<&[u8]>,
        data: Option<ElementData<'_>>,
        comment: Option<&str>,
    ) {
        let plain = match data {
            Some(ElementData::Value(value)) if key_end.is_none() && comment.is_none() => {
                Some((key.len(), value.len()))
            }
            _ => None,
        };
        if let (Some(shape), Some(ElementData::Value(value))) = (plain, data)
            && self.plain == plain
        {
            return self.like_the_last(shape, key, value);
        }
        self.element(key, key_end, data, |buffer| {
            if let Some(comment) = comment {
                userdata::put_comment(buffer, NFTA_SET_ELEM_USERDATA, comment);
            }
        });
        self.plain = plain;
    }

    /// Adds an element of the same shape as the previous one, with a key and a value only. Most
    /// elements are slots of pools, which have this shape; a copy takes a fifth of the time.
    fn like_the_last(&mut self, shape: (usize, usize), key: &[u8], value: &[u8]) {
        /// The size of an attribute's header.
        const HEADER: usize = 4;
        let start = self.bytes.len();
        let key_at = 3 * HEADER;
        let value_at = key_at + align(shape.0) + 2 * HEADER;
        self.bytes.extend_from_within(start - value_at - align(shape.1)..);
        let element = &mut self.bytes[start..];
        element[key_at..][..key.len()].copy_from_slice(key);
        element[value_at..][..value.len()].copy_from_slice(value);
        self.finish_element(start);
    }

    fn element(
        &mut self,
        key: &[u8],
        key_end: Option<&[u8]>,
        data: Option<ElementData<'_>>,
        more: impl FnOnce(&mut Vec<u8>),
    ) {
        self.plain = None;
        let start = self.bytes.len();
        nest(&mut self.bytes, NFTA_LIST_ELEM, |element| {
            put_value(element, NFTA_SET_ELEM_KEY, key);
            if let Some(key_end) = key_end {
                put_value(element, NFTA_SET_ELEM_KEY_END, key_end);
            }
            match data {
                None => {}
                Some(ElementData::Value(value)) => put_value(element, NFTA_SET_ELEM_DATA, value),
                Some(ElementData::Verdict(verdict)) => {
                    nest(element, NFTA_SET_ELEM_DATA, |data| verdict.put(data, NFTA_DATA_VERDICT));
                }
            }
            more(element);
        });
        self.finish_element(start);
    }

    /// Adds an element that expires, like the elements that packets add.
    pub fn push_aging(&mut self, key: &[u8], data: Option<ElementData<'_>>, age: Age) {
        self.element(key, None, data, |buffer| {
            put_be64(buffer, NFTA_SET_ELEM_TIMEOUT, age.timeout);
            put_be64(buffer, NFTA_SET_ELEM_EXPIRATION, age.left);
        });
    }

    /// Adds an element whose counter starts with these numbers instead of zero. The set must have
    /// counters.
    pub fn push_counted(
        &mut self,
        key: &[u8],
        data: Option<ElementData<'_>>,
        comment: Option<&str>,
        counter: Counter,
    ) {
        self.element(key, None, data, |buffer| {
            if let Some(comment) = comment {
                userdata::put_comment(buffer, NFTA_SET_ELEM_USERDATA, comment);
            }
            nest(buffer, NFTA_SET_ELEM_EXPR, |expression| {
                put_text(expression, NFTA_EXPR_NAME, "counter");
                nest(expression, NFTA_EXPR_DATA, |data| {
                    put_be64(data, NFTA_COUNTER_BYTES, counter.bytes);
                    put_be64(data, NFTA_COUNTER_PACKETS, counter.packets);
                });
            });
        });
    }

    fn finish_element(&mut self, start: usize) {
        if self.bytes.len() - self.list_start > self.limit && start > self.list_start {
            self.cuts.push(start);
            self.list_start = start;
        }
        self.count += 1;
    }

    /// Puts each further element in a list of its own, so that a refusal names exactly one.
    pub fn isolate(&mut self) {
        self.limit = 0;
    }

    /// Returns the non-empty lists, each of which fits a message.
    pub(super) fn lists(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.cuts.iter().copied().chain(std::iter::once(self.bytes.len()));
        let starts = std::iter::once(0).chain(self.cuts.iter().copied());
        starts.zip(ends).map(|(start, end)| &self.bytes[start..end]).filter(|l| !l.is_empty())
    }

    /// Returns the size of all lists, in bytes.
    pub(super) fn byte_len(&self) -> usize {
        self.bytes.len()
    }
}

fn put_value(buffer: &mut Vec<u8>, kind: u16, value: &[u8]) {
    nest(buffer, kind, |outer| put(outer, NFTA_DATA_VALUE, value));
}
