//! Netlink messages: `struct nlmsghdr`, followed in all requests here by `struct nfgenmsg`.

use super::attr::{Attrs, align};

/// `NLMSG_HDRLEN`.
const HEADER: usize = 16;
/// The size of `struct nfgenmsg`.
const NETFILTER_HEADER: usize = 4;

/// A message from the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_seq`: that of the request it answers.
    pub sequence: u32,
    /// What follows the header.
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The error that it ends a request with, 0 for success; `None` if it is a message of another
    /// kind. `NLMSG_DONE` carries the error of a dump, in the same place (`netlink_dump_done`).
    pub fn verdict(&self) -> Option<i32> {
        let kind = i32::from(self.kind);
        if kind != libc::NLMSG_ERROR && kind != libc::NLMSG_DONE {
            return None;
        }
        let (error, _) = self.payload.split_first_chunk()?;
        Some(errno(i32::from_ne_bytes(*error)))
    }

    /// Returns what follows the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Its attributes.
    pub fn attrs(&self) -> Attrs<'a> {
        Attrs::new(self.payload.get(NETFILTER_HEADER..).unwrap_or(&[]))
    }
}

/// What netlink says as the negated number of an error, as that number. (The smallest number has none;
/// no kernel says it, and it must not end the agent.)
pub fn errno(error: i32) -> i32 {
    error.wrapping_neg()
}

/// The messages in a buffer. Ends at the first malformed one.
pub fn messages(buffer: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let (&header, _) = rest.split_first_chunk::<HEADER>()?;
        let [l0, l1, l2, l3, k0, k1, _, _, s0, s1, s2, s3, ..] = header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = rest.get(HEADER..length)?;
        rest = rest.get(align(length)..).unwrap_or(&[]);
        Some(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        })
    })
}

/// The head of a request.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// `nlmsg_type`: subsystem and message.
    pub kind: u16,
    /// `nlmsg_flags` beside `NLM_F_REQUEST`.
    pub flags: u16,
    /// `nlmsg_seq`: what the answers will carry.
    pub sequence: u32,
    /// `nfgen_family`.
    pub family: u8,
}

/// Appends a request; `body` appends its attributes.
pub fn put_request(buffer: &mut Vec<u8>, head: Head, body: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    let flags = head.flags | libc::NLM_F_REQUEST as u16;
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(&head.kind.to_ne_bytes());
    buffer.extend_from_slice(&flags.to_ne_bytes());
    buffer.extend_from_slice(&head.sequence.to_ne_bytes());
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(&[head.family, libc::NFNETLINK_V0 as u8, 0, 0]);
    body(buffer);
    let length = (buffer.len() - start) as u32;
    buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Appends a request of any protocol: what follows the header is `payload`.
pub fn put_message(buffer: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, payload: &[u8]) {
    buffer.extend_from_slice(&((HEADER + payload.len()) as u32).to_ne_bytes());
    buffer.extend_from_slice(&kind.to_ne_bytes());
    buffer.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
    buffer.extend_from_slice(&sequence.to_ne_bytes());
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::super::attr::put_be32;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut buffer = Vec::new();
        for sequence in [7, 8] {
            let head = Head { kind: 0x102, flags: 0, sequence, family: 2 };
            put_request(&mut buffer, head, |body| put_be32(body, 3, sequence * 10));
        }
        let read: Vec<_> = messages(&buffer)
            .map(|m| (m.kind, m.sequence, m.attrs().find(3).and_then(|a| a.be32()), m.verdict()))
            .collect();
        assert_eq!(read, [(0x102, 7, Some(70), None), (0x102, 8, Some(80), None)]);
    }

    #[test]
    fn an_error_is_read_whatever_its_number() {
        for (code, errno) in [(0, 0), (-2, 2), (i32::MIN, i32::MIN)] {
            // Length, type, sequence number, port; then the error.
            let words = [20, libc::NLMSG_ERROR, 7, 0, code].map(i32::to_ne_bytes);
            let buffer = words.concat();
            assert_eq!(messages(&buffer).next().and_then(|m| m.verdict()), Some(errno), "{code}");
        }
    }

    #[test]
    fn malformed_bytes_end_the_reading() {
        let mut whole = Vec::new();
        let head = Head { kind: 1, flags: 0, sequence: 1, family: 0 };
        put_request(&mut whole, head, |_| {});
        assert_eq!(messages(&whole).count(), 1);
        assert_eq!(messages(&whole[..whole.len() - 1]).count(), 0);
        let mut short = whole.clone();
        short[0] = 15;
        assert_eq!(messages(&short).count(), 0);
        assert_eq!(messages(&[]).count(), 0);
    }
}
