//! Netlink attributes: a reader that checks every length, and a writer into a byte buffer.
//!
//! ```
//! use nfnetlink::attr::{Attrs, nest, put_be32};
//!
//! let mut buffer = Vec::new();
//! nest(&mut buffer, 4, |inside| put_be32(inside, 1, 80));
//! let outer = Attrs::new(&buffer).find(4).expect("what was written");
//! assert_eq!(outer.children().find(1).and_then(|port| port.be32()), Some(80));
//! // The length says eight bytes, and there are six.
//! assert_eq!(Attrs::new(&[8, 0, 1, 0, 0, 0]).next(), None);
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An attribute of a netlink message (`struct nlattr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr<'a> {
    /// The attribute's type (`nla_type`), without the flag bits.
    pub kind: u16,
    /// The bytes after the header of four bytes, without padding.
    pub payload: &'a [u8],
}

impl<'a> Attr<'a> {
    /// Reads the nested attributes of this one, whether or not the sender marked it as nested.
    #[must_use]
    pub fn children(&self) -> Attrs<'a> {
        Attrs::new(self.payload)
    }

    /// Reads the payload as a `u32` in network byte order, which netfilter uses for numbers.
    /// Returns `None` for another length.
    #[must_use]
    pub fn be32(&self) -> Option<u32> {
        self.payload.try_into().ok().map(u32::from_be_bytes)
    }

    /// Reads the payload as a `u64` in network byte order. Returns `None` for another length.
    #[must_use]
    pub fn be64(&self) -> Option<u64> {
        self.payload.try_into().ok().map(u64::from_be_bytes)
    }

    /// Reads the payload as UTF-8 text, up to the first NUL or the end.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|b| *b == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(&self.payload[..end]).ok()
    }
}

/// An iterator over the attributes in a byte slice. Ends before the first malformed attribute.
#[derive(Debug, Clone)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Reads attributes from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Attrs<'a> {
        Attrs { rest: bytes }
    }

    /// Returns the first unread attribute of that type.
    #[must_use]
    pub fn find(&self, kind: u16) -> Option<Attr<'a>> {
        Iterator::find(&mut self.clone(), |a| a.kind == kind)
    }

    /// Returns the first unread attribute of that type as a `u32` in network byte order.
    #[must_use]
    pub fn be32(&self, kind: u16) -> Option<u32> {
        self.find(kind)?.be32()
    }

    /// Returns the first unread attribute of that type as a `u64` in network byte order.
    #[must_use]
    pub fn be64(&self, kind: u16) -> Option<u64> {
        self.find(kind)?.be64()
    }

    /// Returns the first unread attribute of that type as text.
    #[must_use]
    pub fn text(&self, kind: u16) -> Option<&'a str> {
        self.find(kind)?.text()
    }

    /// Returns the offset of the unread part in `of`, the slice that the iterator was made from, in
    /// bytes.
    pub fn offset_in(&self, of: &[u8]) -> usize {
        of.len() - self.rest.len()
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let (&[l0, l1, k0, k1], _) = self.rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let kind = u16::from_ne_bytes([k0, k1]);
        let payload = self.rest.get(4..length)?;
        self.rest = self.rest.get(align(length)..).unwrap_or(&[]);
        Some(Attr { kind: kind & libc::NLA_TYPE_MASK as u16, payload })
    }
}

/// Reads an IP address from four or sixteen bytes. Returns `None` for another length.
#[must_use]
pub fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into());
    let v6 = || Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into());
    v4().or_else(v6)
}

/// Rounds a length up to the alignment of netlink messages and attributes (`NLA_ALIGNTO`).
pub const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// Appends an attribute whose payload `payload` appends. The length field has 16 bits; the caller
/// ensures that the payload fits.
pub fn put_with(buffer: &mut Vec<u8>, kind: u16, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 2]);
    buffer.extend_from_slice(&kind.to_ne_bytes());
    payload(buffer);
    let length = (buffer.len() - start) as u16;
    buffer[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    buffer.resize(align(buffer.len()), 0);
}

/// Appends an attribute with the nested attributes that `inside` appends (`NLA_F_NESTED`).
pub fn nest(buffer: &mut Vec<u8>, kind: u16, inside: impl FnOnce(&mut Vec<u8>)) {
    put_with(buffer, kind | libc::NLA_F_NESTED as u16, inside);
}

/// Appends an attribute with this payload and its padding.
pub fn put(buffer: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    put_with(buffer, kind, |buffer| buffer.extend_from_slice(payload));
}

/// Appends an attribute with a `u32` in network byte order.
pub fn put_be32(buffer: &mut Vec<u8>, kind: u16, value: u32) {
    put(buffer, kind, &value.to_be_bytes());
}

/// Appends an attribute with a `u64` in network byte order.
pub fn put_be64(buffer: &mut Vec<u8>, kind: u16, value: u64) {
    put(buffer, kind, &value.to_be_bytes());
}

/// Appends an attribute with text and a terminating NUL.
pub fn put_text(buffer: &mut Vec<u8>, kind: u16, text: &str) {
    put_with(buffer, kind, |buffer| {
        buffer.extend_from_slice(text.as_bytes());
        buffer.push(0);
    });
}
