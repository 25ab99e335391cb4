//! Netlink messages: `struct nlmsghdr`, then the header of the protocol, then attributes.

use crate::attr::{Attrs, align};

/// The size of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;

/// A netlink message, as a view of a receive buffer.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// `nlmsg_type`: for netfilter, the upper byte is the subsystem.
    pub kind: u16,
    /// `nlmsg_flags`: `NLM_F_*` bits.
    pub flags: u16,
    /// `nlmsg_seq`: the kernel copies it from the request to the answer.
    pub sequence: u32,
    /// The header of the protocol, such as `struct nfgenmsg`, and the attributes.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the errno that ends a request, 0 for success; `None` for other message types.
    /// `NLMSG_DONE` has the error of a dump at the same offset (`netlink_dump_done`).
    #[must_use]
    pub fn error_code(&self) -> Option<i32> {
        if ![libc::NLMSG_ERROR, libc::NLMSG_DONE].contains(&i32::from(self.kind)) {
            return None;
        }
        // `i32::MIN` has no opposite. No kernel sends it, and it must not cause a panic.
        self.payload.first_chunk().map(|error| i32::from_ne_bytes(*error).wrapping_neg())
    }

    /// Reads the attributes after a header of four bytes, the size in netfilter and generic
    /// netlink.
    #[must_use]
    pub fn attrs(&self) -> Attrs<'a> {
        self.attrs_behind(4)
    }

    /// Reads the attributes after a header of `header` bytes.
    #[must_use]
    pub fn attrs_behind(&self, header: usize) -> Attrs<'a> {
        Attrs::new(self.payload.get(header..).unwrap_or(&[]))
    }
}

/// Reads the messages in a buffer. Ends before the first malformed message.
pub fn messages(buffer: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let (&header, _) = rest.split_first_chunk::<HEADER>()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = rest.get(HEADER..length)?;
        rest = rest.get(align(length)..).unwrap_or(&[]);
        Some(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        })
    })
}

/// Appends a request with `NLM_F_REQUEST` and `flags`; `body` appends the protocol's header and the
/// attributes.
///
/// ```
/// use nfnetlink::{attr, message};
///
/// let mut buffer = Vec::new();
/// message::put(&mut buffer, 0x0a01, 0, 7, |body| {
///     message::put_netfilter_header(body, 2, 0);
///     attr::put_text(body, 1, "filter");
/// });
/// let read = message::messages(&buffer).next().expect("one message");
/// assert_eq!((read.kind, read.sequence), (0x0a01, 7));
/// assert_eq!(read.attrs().find(1).and_then(|name| name.text()), Some("filter"));
/// ```
pub fn put(
    buffer: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(&kind.to_ne_bytes());
    buffer.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
    buffer.extend_from_slice(&sequence.to_ne_bytes());
    buffer.extend_from_slice(&[0; 4]);
    body(buffer);
    let length = (buffer.len() - start) as u32;
    buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Appends `struct nfgenmsg`, the header at the start of the body of every netfilter message.
pub fn put_netfilter_header(body: &mut Vec<u8>, family: u8, resource: u16) {
    let [high, low] = resource.to_be_bytes();
    body.extend_from_slice(&[family, libc::NFNETLINK_V0 as u8, high, low]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_ends_at_a_message_that_is_cut() {
        let mut whole = Vec::new();
        put(&mut whole, 0x102, 0, 1, |body| put_netfilter_header(body, 2, 0));
        let complete: Vec<usize> =
            (0..=whole.len()).map(|length| messages(&whole[..length]).count()).collect();
        assert_eq!(complete, [[0; 20].as_slice(), &[1]].concat());
    }

    #[test]
    fn error_without_an_opposite_is_read() {
        // Length, type, sequence number, port; then the error.
        let words = [20, libc::NLMSG_ERROR, 7, 0, i32::MIN].map(i32::to_ne_bytes);
        let code = messages(&words.concat()).next().and_then(|message| message.error_code());
        assert_eq!(code, Some(i32::MIN));
    }
}
