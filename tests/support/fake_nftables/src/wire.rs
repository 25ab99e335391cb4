//! Netlink messages and attributes: places in those of a transaction, writing those of a listing.

use nfnetlink::attr::{self, Attr, Attrs};
use nfnetlink::message::Message;

/// `nfgen_family`.
pub(crate) fn family(message: &Message<'_>) -> u8 {
    message.payload[0]
}

/// How far from the start of the message an attribute of it begins.
pub(crate) fn offset(message: &Message<'_>, attr: &Attr<'_>) -> usize {
    /// `NLMSG_HDRLEN`.
    const HEADER: usize = 16;
    HEADER + (attr.payload.as_ptr() as usize - 4) - message.payload.as_ptr() as usize
}

/// An attribute under construction, or a list of them.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn put(mut self, kind: u16, payload: &[u8]) -> Writer {
        attr::put(&mut self.bytes, kind, payload);
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
