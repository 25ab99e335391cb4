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

#[cfg(test)]
mod tests {
    use nfnetlink::nft::{Batch, ElementData, Elements, TableFamily};

    use super::*;

    fn key(address: [u8; 4], port: u8) -> Vec<u8> {
        [&address[..], &[6, 0, 0, 0, 0, port, 0, 0]].concat()
    }

    /// A transaction that adds and deletes elements with these keys, alone and among others.
    fn transaction(keys: &[Vec<u8>]) -> Vec<u8> {
        let other = key([10, 96, 0, 1], 80);
        let mut batch = Batch::new(Some(7));
        batch.add_table(TableFamily::Ip, "shunt", 0, "a comment");
        for key in keys {
            let mut elements = Elements::new();
            for key in [&other, key, &other] {
                elements.push(key, Some(ElementData::Value(key)), None);
                elements.push(key, None, Some("10.96.0.7:80"));
            }
            batch.add_elements(TableFamily::Ip, "shunt", "endpoints", &elements);
            batch.delete_elements(TableFamily::Ip, "shunt", "endpoints", &elements);
        }
        batch.finish().bytes().to_vec()
    }

    #[test]
    fn what_is_added_for_the_frontend_loses_its_key_and_nothing_else_changes() {
        let frontends = ["10.96.0.7:80".parse().unwrap()];
        let picked_on = key([10, 96, 0, 7], 80);
        let mut spoiled = transaction(&[picked_on.clone(), picked_on]);
        let before = spoiled.clone();
        assert_eq!(spoil(&mut spoiled, &frontends), 4);
        let changed = before.iter().zip(&spoiled).filter(|(before, now)| before != now).count();
        assert_eq!(changed, 4 * 2, "two bytes, type and flags of an attribute, each");
        // Without their keys there is nothing to be found.
        assert_eq!(spoil(&mut spoiled, &frontends), 0);
    }

    #[test]
    fn other_addresses_and_ports_are_let_through() {
        let frontends = ["10.96.0.7:80", "[fd00:96::7]:80"].map(|one| one.parse().unwrap());
        let others = [key([10, 96, 0, 7], 81), key([10, 96, 0, 8], 80), vec![10, 96, 0, 7]];
        let mut sent = transaction(&others);
        let before = sent.clone();
        assert_eq!(spoil(&mut sent, &frontends), 0);
        assert_eq!(sent, before);
    }
}
