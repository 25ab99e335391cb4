//! Netlink messages and attributes: reading those of a transaction, writing those of a listing.

use nfnetlink::nft::{Attr, Attrs};

/// `NLMSG_HDRLEN` plus the size of `struct nfgenmsg`.
const HEADERS: usize = 20;

/// One message of a transaction.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// The messages in a buffer.
    pub(crate) fn all(buffer: &'a [u8]) -> impl Iterator<Item = Message<'a>> {
        let mut rest = buffer;
        std::iter::from_fn(move || {
            let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
            let bytes = rest.get(..length).filter(|bytes| bytes.len() >= HEADERS)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            Some(Message { bytes })
        })
    }

    /// `nlmsg_type`: subsystem and message.
    pub(crate) fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[4], self.bytes[5]])
    }

    /// `nlmsg_flags`.
    pub(crate) fn has_flag(&self, flag: i32) -> bool {
        u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) & flag as u16 != 0
    }

    /// `nlmsg_seq`.
    pub(crate) fn sequence(&self) -> u32 {
        u32::from_ne_bytes([self.bytes[8], self.bytes[9], self.bytes[10], self.bytes[11]])
    }

    /// `nfgen_family`.
    pub(crate) fn family(&self) -> u8 {
        self.bytes[16]
    }

    /// Its attributes.
    pub(crate) fn attrs(&self) -> Attrs<'a> {
        Attrs::new(&self.bytes[HEADERS..])
    }

    /// How far from the start of the message an attribute of it begins.
    pub(crate) fn offset(&self, attr: &Attr<'a>) -> usize {
        attr.payload.as_ptr() as usize - 4 - self.bytes.as_ptr() as usize
    }
}

/// An attribute under construction, or a list of them.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn put(mut self, kind: u16, payload: &[u8]) -> Writer {
        self.bytes.extend_from_slice(&((payload.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn number(self, kind: u16, value: u32) -> Writer {
        self.put(kind, &value.to_be_bytes())
    }

    pub(crate) fn long(self, kind: u16, value: u64) -> Writer {
        self.put(kind, &value.to_be_bytes())
    }

    pub(crate) fn text(self, kind: u16, text: &str) -> Writer {
        self.put(kind, &[text.as_bytes(), &[0]].concat())
    }

    pub(crate) fn nest(self, kind: u16, inside: Writer) -> Writer {
        self.put(kind, &inside.bytes)
    }

    pub(crate) fn attrs(&self) -> Attrs<'_> {
        Attrs::new(&self.bytes)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
