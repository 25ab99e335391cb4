//! Single elements of a set, by their keys.

use nix::errno::Errno;

use super::socket::elements;
use super::uapi::{
    NFT_SET_ELEM_CATCHALL, NFTA_DATA_VALUE, NFTA_LIST_ELEM, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_NAME,
    NFTA_SET_TABLE, kind,
};
use super::{DumpedSet, Element, Error, Socket};
use crate::Family;
use crate::attr::{nest, put, put_be32, put_text};
use crate::message::{Message, put_netfilter_header};

/// The number of keys in one `send`: their answers must fit the receive buffer.
const KEYS: usize = 32;

impl Socket {
    /// Looks up elements of a set or map by their keys, as `nft get element` does. Returns one
    /// result per key; `None` if the set has no such element. In a set of ranges, the result is the
    /// range that contains the key. Takes no longer in a large set than in a small one.
    ///
    /// The caller pads each field of a key to four bytes. The keys may be answered by different
    /// generations.
    ///
    /// # Errors
    /// [`Error::Request`] with `ENOENT` if there is no such table or set, with `EINVAL` if a key has
    /// another length than the keys of the set.
    pub fn lookup(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Element>>, Error> {
        let mut found: Vec<Option<Element>> = vec![None; keys.len()];
        let mut failure = None;
        let mut is_missing = false;
        for (chunk, found) in keys.chunks(KEYS).zip(found.chunks_mut(KEYS)) {
            let body = |key: &&[u8], body: &mut Vec<u8>| {
                put_netfilter_header(body, family.number(), 0);
                put_query(body, table, set, Some(key));
            };
            let each = |position: usize, answer: Result<Message<'_>, Errno>| match (
                answer,
                found.get_mut(position),
            ) {
                (Ok(message), Some(slot)) => *slot = elements(&message).next().map(Into::into),
                (Err(Errno::ENOENT), _) => is_missing = true,
                (Err(errno), _) => failure = Some(errno),
                (Ok(_), None) => {}
            };
            self.connection.query_all(kind(libc::NFT_MSG_GETSETELEM), chunk, body, each)?;
        }
        let request = "look up an element";
        if let Some(errno) = failure {
            return Err(Error::Request { request, errno });
        }
        // The kernel has one error for a missing element, set and table.
        if is_missing && found.iter().all(Option::is_none) {
            self.find_set(family, table, set)?;
        }
        Ok(found)
    }

    /// Fails with `ENOENT` if there is no such set. Not a listing, which commits could interrupt.
    fn find_set(&mut self, family: Family, table: &str, set: &str) -> Result<(), Error> {
        let of = |body: &mut Vec<u8>| {
            put_text(body, NFTA_SET_TABLE, table);
            put_text(body, NFTA_SET_NAME, set);
        };
        let request = "find the set";
        self.get(request, libc::NFT_MSG_GETSET, family.number(), of, DumpedSet::parse)?
            .map(drop)
            .ok_or(Error::Request { request, errno: Errno::ENOENT })
    }
}

/// Appends the attributes of a query for one element: that of the key, or the one that all keys have
/// which have no other.
pub(super) fn put_query(body: &mut Vec<u8>, table: &str, set: &str, key: Option<&[u8]>) {
    put_text(body, NFTA_SET_ELEM_LIST_TABLE, table);
    put_text(body, NFTA_SET_ELEM_LIST_SET, set);
    nest(body, NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
        nest(list, NFTA_LIST_ELEM, |element| match key {
            Some(key) => {
                nest(element, NFTA_SET_ELEM_KEY, |outer| put(outer, NFTA_DATA_VALUE, key));
            }
            None => put_be32(element, NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_CATCHALL),
        });
    });
}
