//! The userdata of nft, which the kernel stores without interpreting it: comments, and the types of
//! maps whose keys have no type number.
//!
//! Userdata is a list of {type u8, length u8, payload}. Source: libnftnl
//! `include/libnftnl/udata.h`, nft `src/netlink.c` and the `*_build_udata` functions of its
//! expressions.

use crate::Family;
use crate::attr::put_with;

/// The longest comment in bytes: `NFT_USERDATA_MAXLEN` is 256, and a comment also has a type, a
/// length and a NUL.
const COMMENT_LIMIT: usize = 250;

const UDATA_COMMENT: u8 = 0;
const SET_KEY_BYTEORDER: u8 = 0;
const SET_DATA_BYTEORDER: u8 = 1;
const SET_KEY_TYPEOF: u8 = 3;
const SET_DATA_TYPEOF: u8 = 4;

const TYPEOF_EXPR: u8 = 0;
const TYPEOF_DATA: u8 = 1;

/// Numbers of nft's `enum expr_types`, as nft stores them in userdata.
const EXPR_PAYLOAD: u32 = 7;
const EXPR_META: u32 = 9;
const EXPR_CONCAT: u32 = 13;
const EXPR_NUMGEN: u32 = 23;

/// A field of a set's key or data, for types that nft expresses with `typeof`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetField {
    /// `ip daddr` or `ip6 daddr`.
    Address,
    /// `meta l4proto`.
    Protocol,
    /// `th dport`.
    Port,
    /// `numgen random mod N`.
    Index,
}

/// The types of a map's key and data, as the expressions that produce them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeOf {
    /// The fields of the key, in the order of the concatenation.
    pub key: &'static [SetField],
    /// The fields of the data, in the order of the concatenation.
    pub data: &'static [SetField],
}

/// Truncates a comment to [`COMMENT_LIMIT`] bytes, at a character boundary.
fn fitting(comment: &str) -> &str {
    let mut end = comment.len().min(COMMENT_LIMIT);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    &comment[..end]
}

/// Appends the userdata attribute of a table or element, with a comment.
pub(super) fn put_comment(buffer: &mut Vec<u8>, kind: u16, comment: &str) {
    let comment = fitting(comment);
    put_with(buffer, kind, |blob| {
        blob.extend_from_slice(&[UDATA_COMMENT, (comment.len() + 1) as u8]);
        blob.extend_from_slice(comment.as_bytes());
        blob.push(0);
    });
}

/// Returns the comment in the userdata of a table, rule or element.
pub(super) fn comment(blob: &[u8]) -> Option<&str> {
    let mut rest = blob;
    while let [kind, length, tail @ ..] = rest {
        let payload = tail.get(..usize::from(*length))?;
        if *kind == UDATA_COMMENT {
            return std::str::from_utf8(payload.strip_suffix(&[0]).unwrap_or(payload)).ok();
        }
        rest = &tail[usize::from(*length)..];
    }
    None
}

fn entry(blob: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    blob.push(kind);
    blob.push(payload.len() as u8);
    blob.extend_from_slice(payload);
}

fn entry_u32(blob: &mut Vec<u8>, kind: u8, value: u32) {
    entry(blob, kind, &value.to_ne_bytes());
}

/// Encodes the userdata that nft needs to print a map whose key holds a `numgen`.
pub(super) fn set_typeof(family: Family, types: &TypeOf) -> Vec<u8> {
    let mut blob = Vec::new();
    entry_u32(&mut blob, SET_KEY_BYTEORDER, 0);
    entry_u32(&mut blob, SET_DATA_BYTEORDER, 0);
    entry(&mut blob, SET_KEY_TYPEOF, &concatenation(family, types.key));
    entry(&mut blob, SET_DATA_TYPEOF, &concatenation(family, types.data));
    blob
}

fn concatenation(family: Family, fields: &[SetField]) -> Vec<u8> {
    let mut items = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        entry(&mut items, index as u8, &expression(family, *field));
    }
    let mut concat = Vec::new();
    entry_u32(&mut concat, TYPEOF_EXPR, EXPR_CONCAT);
    entry(&mut concat, TYPEOF_DATA, &items);
    concat
}

fn expression(family: Family, field: SetField) -> Vec<u8> {
    /// Numbers of nft's `enum proto_desc_id`, and the field numbers of its protocol descriptions.
    const DESC_TH: u32 = 11;
    const DESC_IP: u32 = 12;
    const DESC_IP6: u32 = 13;
    const TH_DPORT: u32 = 2;
    const IP_DADDR: u32 = 12;
    const IP6_DADDR: u32 = 9;

    let (kind, values): (u32, &[u32]) = match (field, family) {
        (SetField::Address, Family::Ip) => (EXPR_PAYLOAD, &[DESC_IP, IP_DADDR]),
        (SetField::Address, Family::Ip6) => (EXPR_PAYLOAD, &[DESC_IP6, IP6_DADDR]),
        (SetField::Protocol, _) => (EXPR_META, &[libc::NFT_META_L4PROTO as u32]),
        (SetField::Port, _) => (EXPR_PAYLOAD, &[DESC_TH, TH_DPORT]),
        // Type, modulus and offset. The modulus differs between rules, but nft needs one to print.
        (SetField::Index, _) => (EXPR_NUMGEN, &[libc::NFT_NG_RANDOM as u32, 2, 0]),
    };
    let mut data = Vec::new();
    for (index, value) in values.iter().enumerate() {
        entry_u32(&mut data, index as u8, *value);
    }
    let mut blob = Vec::new();
    entry_u32(&mut blob, TYPEOF_EXPR, kind);
    entry(&mut blob, TYPEOF_DATA, &data);
    blob
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that nft 1.0.6 sends for
    /// `typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport`.
    #[test]
    #[cfg(target_endian = "little")]
    fn the_typeof_blob_is_the_one_nft_writes() {
        const FROM_NFT: &str = "000400000000010400000000036000040d00000001580014000407000000010c\
            00040c00000001040c000000010e00040900000001060004100000000214000407000000010c00040b00\
            0000010402000000031a0004170000000112000401000000010402000000020400000000043400040d00\
            0000012c0014000407000000010c00040c00000001040c0000000114000407000000010c00040b000000\
            010402000000";
        let types = TypeOf {
            key: &[SetField::Address, SetField::Protocol, SetField::Port, SetField::Index],
            data: &[SetField::Address, SetField::Port],
        };
        let blob = set_typeof(Family::Ip, &types);
        let hex: String = blob.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, FROM_NFT);
    }

    #[test]
    fn comments_are_cut_at_a_character_and_read_back() {
        let long = "ä".repeat(200);
        let mut buffer = Vec::new();
        put_comment(&mut buffer, 6, &long);
        let read = comment(&buffer[4..]).expect("a comment");
        assert!(long.starts_with(read) && read.len() == COMMENT_LIMIT);
        assert_eq!(comment(&[1, 1, 0]), None);
        assert_eq!(comment(&[0, 200, b'x']), None);
    }
}
