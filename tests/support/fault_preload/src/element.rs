//! Elements in messages to nf_tables.

use std::net::{IpAddr, SocketAddr};

/// `NLMSG_HDRLEN` plus `struct nfgenmsg`.
const HEADERS: usize = 20;
/// Of an attribute.
const HEADER: usize = 4;
/// What attributes are called in `linux/netfilter/nf_tables.h`.
const NFTA_SET_ELEM_UNSPEC: u16 = 0;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_DATA_VALUE: u16 = 1;

/// Takes the key from each element that a transaction adds for one of these frontends. The kernel
/// passes over an attribute without a name and refuses an element without a key (EINVAL,
/// `nft_add_set_elem`). Returns the number of elements.
pub(crate) fn spoil(transaction: &mut [u8], frontends: &[SocketAddr]) -> usize {
    let added = ((libc::NFNL_SUBSYS_NFTABLES as u16) << 8) | libc::NFT_MSG_NEWSETELEM as u16;
    let mut count = 0;
    let mut rest = transaction;
    while let Some(length) = rest.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        if length < HEADERS || length > rest.len() {
            break;
        }
        let (message, behind) = rest.split_at_mut(length.next_multiple_of(4).min(rest.len()));
        if number(message, 4) == Some(added) {
            count += spoil_message(message, frontends);
        }
        rest = behind;
    }
    count
}

fn spoil_message(message: &mut [u8], frontends: &[SocketAddr]) -> usize {
    // Everything is aligned to four bytes.
    let is_key = |at: &usize| {
        // NLA_F_NESTED may be set.
        let outer = number(message, at - 2 * HEADER + 2).map(|kind| kind & !0x8000);
        let inner = number(message, at - HEADER + 2);
        (outer, inner) == (Some(NFTA_SET_ELEM_KEY), Some(NFTA_DATA_VALUE))
            && frontends.iter().any(|frontend| is_of(*frontend, &message[*at..]))
    };
    let keys: Vec<usize> =
        (HEADERS + 2 * HEADER..message.len()).step_by(4).filter(is_key).collect();
    for at in &keys {
        let kind = at - 2 * HEADER + 2;
        message[kind..kind + 2].copy_from_slice(&NFTA_SET_ELEM_UNSPEC.to_ne_bytes());
    }
    keys.len()
}

/// True if a key begins as those of the frontend do: address, protocol, port, each in four bytes or a
/// multiple of them.
fn is_of(frontend: SocketAddr, key: &[u8]) -> bool {
    let behind = match frontend.ip() {
        IpAddr::V4(ip) => key.strip_prefix(&ip.octets()),
        IpAddr::V6(ip) => key.strip_prefix(&ip.octets()),
    };
    behind.and_then(|rest| rest.get(4..6)) == Some(&frontend.port().to_be_bytes())
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
