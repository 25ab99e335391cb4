//! Elements: adding and deleting them (`nft_add_set_elem`, `nft_del_setelem`).

use nfnetlink::attr::{Attr, Attrs};
use nfnetlink::nft::Counter;
use nix::errno::Errno;

use crate::namespace::Refuse;
use crate::objects::{Data, Element, Set, Table};
use crate::uapi::*;

impl Table {
    /// A chain that rules and elements may go to: one that is there, and is no base chain.
    pub(crate) fn target(&self, name: &str) -> Result<(), Errno> {
        let chain = self.chain(name).ok_or(Errno::ENOENT)?;
        if chain.head.base.is_some() { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    /// Adds an element; true if it was not there.
    pub(crate) fn add_element(
        &mut self,
        set: &str,
        element: &Attr<'_>,
        refuse: Option<&Refuse>,
    ) -> Result<bool, Errno> {
        let attrs = element.children();
        let of = self.set(set).ok_or(Errno::ENOENT)?;
        let data = attrs.find(NFTA_SET_ELEM_DATA);
        if of.kind.data.is_some() != data.is_some() {
            return Err(Errno::EINVAL);
        }
        let ages = attrs.find(NFTA_SET_ELEM_TIMEOUT).is_some()
            || attrs.find(NFTA_SET_ELEM_EXPIRATION).is_some();
        if ages && of.kind.flags & SET_F_TIMEOUT == 0 {
            return Err(Errno::EINVAL);
        }
        let (key, key_end) = keys(of, &attrs)?;
        let data = match (of.kind.data, data) {
            (Some((kind, length)), Some(data)) => {
                Some(self.data(kind, length as usize, &data.children())?)
            }
            _ => None,
        };
        let counter = counter(of, &attrs)?;
        let raw = element.payload.to_vec();
        let new = Element { key, key_end, data, counter, raw, order: 0 };
        match clash(of, &new)? {
            Some(old) if old.data != new.data => return Err(Errno::EEXIST),
            Some(_) => return Ok(false),
            None => {}
        }
        if let Some(errno) = refuse.and_then(|refuse| refuse(set, &new.key)) {
            return Err(errno);
        }
        let is_full = of.head.size.is_some_and(|size| of.elements.len() >= size as usize);
        // One too many is there all the same for the rest of the transaction, which is doomed.
        self.set_mut(set).ok_or(Errno::ENOENT)?.insert(new);
        if is_full { Err(Errno::ENFILE) } else { Ok(true) }
    }

    /// Deletes an element; true, since one that is not there cannot be deleted.
    pub(crate) fn delete_element(&mut self, set: &str, element: &Attr<'_>) -> Result<bool, Errno> {
        let of = self.set_mut(set).ok_or(Errno::ENOENT)?;
        let (key, _) = keys(of, &element.children())?;
        // Of a range only the beginning is looked up, in any range.
        let found = if of.has_ranges() { of.holding(&key) } else { of.elements.get(&key) };
        let found = found.cloned().ok_or(Errno::ENOENT)?;
        of.remove(&found);
        Ok(true)
    }

    fn data(&self, kind: u32, length: usize, attrs: &Attrs<'_>) -> Result<Data, Errno> {
        let data = Data::parse(attrs).ok_or(Errno::EINVAL)?;
        match &data {
            Data::Value(_) if kind == NFT_DATA_VERDICT => return Err(Errno::EINVAL),
            Data::Value(value) => check_length(value, length)?,
            Data::Verdict(..) if kind != NFT_DATA_VERDICT => return Err(Errno::EINVAL),
            Data::Verdict(libc::NFT_GOTO | libc::NFT_JUMP, chain) => {
                self.target(chain.as_deref().ok_or(Errno::EINVAL)?)?;
            }
            Data::Verdict(..) => {}
        }
        Ok(data)
    }
}

/// The counter of a new element: the one that it brings, or one at zero in a set that counts.
fn counter(set: &Set, attrs: &Attrs<'_>) -> Result<Option<Counter>, Errno> {
    let Some(expression) = attrs.find(NFTA_SET_ELEM_EXPR) else {
        let counts = set.kind.expression.as_deref() == Some("counter");
        return Ok(counts.then(Counter::default));
    };
    let attrs = expression.children();
    let name = attrs.find(NFTA_EXPR_NAME).ok_or(Errno::EINVAL)?;
    assert_eq!(name.text(), Some("counter"), "an expression that the agent does not use");
    let data = attrs.find(NFTA_EXPR_DATA).map(|data| data.children());
    let number = |kind| data.as_ref().and_then(|data| data.find(kind)?.be64()).unwrap_or(0);
    Ok(Some(Counter { packets: number(NFTA_COUNTER_PACKETS), bytes: number(NFTA_COUNTER_BYTES) }))
}

/// The key of an element and, in a set of ranges, the end of its range.
fn keys(set: &Set, attrs: &Attrs<'_>) -> Result<(Vec<u8>, Option<Vec<u8>>), Errno> {
    let read = |attribute: u16| {
        let Some(attr) = attrs.find(attribute) else { return Ok(None) };
        let value = attr.children().find(NFTA_DATA_VALUE).ok_or(Errno::EINVAL)?.payload;
        check_length(value, set.kind.key.1 as usize)?;
        Ok(Some(value.to_vec()))
    };
    let (key, key_end) =
        (read(NFTA_SET_ELEM_KEY)?.ok_or(Errno::EINVAL)?, read(NFTA_SET_ELEM_KEY_END)?);
    if key_end.is_some() && !set.has_ranges() {
        return Err(Errno::EINVAL);
    }
    Ok((key, key_end))
}

/// `nft_value_init`.
fn check_length(value: &[u8], wanted: usize) -> Result<(), Errno> {
    match value.len() {
        length if length > VALUE_MAX => Err(Errno::EOVERFLOW),
        length if length != wanted => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// The element that is in the place of a new one, if it is for the same key. Ranges that overlap
/// are an error (`nft_pipapo_insert`), unless the new one holds all of the old one, which the
/// kernel does not notice.
fn clash<'a>(set: &'a Set, new: &Element) -> Result<Option<&'a Element>, Errno> {
    if !set.has_ranges() {
        return Ok(set.elements.get(&new.key));
    }
    let end = new.end();
    match set.holding(&new.key) {
        Some(old) if old.key == new.key && old.end() == end => return Ok(Some(old)),
        Some(_) => return Err(Errno::EEXIST),
        None => {}
    }
    if set.holding(end).is_some() {
        return Err(Errno::EEXIST);
    }
    let mut start = 0;
    for length in &set.kind.fields {
        let field = start..start + *length as usize;
        start += (*length as usize).next_multiple_of(4);
        if new.key[field.clone()] > end[field] {
            return Err(Errno::EINVAL);
        }
    }
    Ok(None)
}
