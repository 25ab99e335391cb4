//! The tables that note repeated SYNs, `ip shunt-unresponsive` and `ip6 shunt-unresponsive`.
//!
//! On Linux 5.12 and later, the kernel deletes them with the socket of the agent. On older kernels
//! they stay after the end of the agent, and the next start replaces or removes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use nfnetlink::nft::{
    BaseChain, Batch, ChainKind, Error, Expr, Hook, Kernel, Refusal, Register, SetType, TABLE_OWNER,
};
use nix::errno::Errno;
use shunt_core::model::Family;

use crate::dataplane::{retried, table_family};

/// The name of the tables.
pub const TABLE: &str = "shunt-unresponsive";
const COMMENT: &str = "shunt: SYNs that clients repeat";
/// The set of endpoints to which clients repeat their SYNs: `endpoint . port`.
const SET: &str = "repeated-syns";
/// The maximum number of elements. A full set notes no further endpoint, which only delays its finding.
const SIZE: u32 = 4_096;
/// How long an element stays after the last SYN of all clients.
const TIMEOUT: Duration = Duration::from_secs(5);
/// After destination NAT, which has priority -100: the packet has the address of the endpoint.
const AFTER_NAT: i32 = -90;
const CHAINS: [(&str, Hook); 2] =
    [("syns-from-outside", Hook::Prerouting), ("syns-from-node", Hook::Output)];

/// `IPS_SEEN_REPLY`, `IPS_CONFIRMED` and `IPS_DST_NAT` of `nf_conntrack_common.h`.
const SEEN_REPLY: u32 = 1 << 1;
const CONFIRMED: u32 = 1 << 3;
const DST_NAT: u32 = 1 << 5;
/// The flags of TCP.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A SYN that a client has repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RepeatedSyn {
    /// The endpoint to which the kernel translates the connection.
    pub(super) endpoint: SocketAddr,
    /// The time of the last repetition.
    pub(super) at: Instant,
}

/// Creates the tables of these families, in place of those of an agent that has ended.
pub(super) fn install(kernel: &mut dyn Kernel, families: &[Family]) -> Result<(), Error> {
    let existing = existing(kernel)?;
    let batch = |flags| {
        let mut batch = Batch::new(None);
        existing.iter().for_each(|family| batch.delete_table(table_family(*family), TABLE));
        families.iter().for_each(|family| fill(&mut batch, *family, flags));
        batch.finish()
    };
    match kernel.commit(&batch(TABLE_OWNER)) {
        // The kernel does not know the flag.
        Err(Error::Refused(refusals)) if refusals.iter().any(is_about_flags) => {
            kernel.commit(&batch(0))
        }
        result => result,
    }
}

/// Deletes the tables of an agent that has ended. Returns their number.
///
/// # Errors
/// If the kernel refuses a listing or the deletion, as for tables of an agent that runs.
pub fn remove_tables(kernel: &mut dyn Kernel) -> Result<usize, Error> {
    let existing = existing(kernel)?;
    if !existing.is_empty() {
        let mut batch = Batch::new(None);
        existing.iter().for_each(|family| batch.delete_table(table_family(*family), TABLE));
        kernel.commit(&batch.finish())?;
    }
    Ok(existing.len())
}

fn existing(kernel: &mut dyn Kernel) -> Result<Vec<Family>, Error> {
    let mut existing = Vec::new();
    for family in Family::ALL {
        if retried(|| kernel.table(table_family(family), TABLE))?.is_some() {
            existing.push(family);
        }
    }
    Ok(existing)
}

fn is_about_flags(refusal: &Refusal) -> bool {
    let about_table = refusal.table == TABLE && refusal.object.is_empty();
    about_table && matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

fn fill(batch: &mut Batch, family: Family, flags: u32) {
    let table = table_family(family);
    batch.add_table(table, TABLE, flags, COMMENT);
    let (address, length) = if family == Family::V4 { (7, 4) } else { (8, 16) };
    let port = 13;
    let key_type = address << 6 | port;
    let kind = SetType { learned: true, size: Some(SIZE), ..SetType::of(key_type, length + 4) };
    batch.add_set(table, TABLE, SET, &kind);
    for (name, hook) in CHAINS {
        let base = BaseChain { kind: ChainKind::Filter, hook, priority: AFTER_NAT };
        batch.add_chain(table, TABLE, name, Some(base));
        batch.add_rule(table, TABLE, name, &rule(family), Some("repeated SYN to an endpoint"));
    }
}

/// Returns the rule for a SYN on an existing entry without a reply. The entry of a first SYN is not
/// confirmed yet, and packets of answered connections end at the first match.
fn rule(family: Family) -> Vec<Expr> {
    const FIRST: Register = Register(0);
    // `struct iphdr` and `struct ipv6hdr`.
    let (destination, length) = match family {
        Family::V4 => (16, 4),
        Family::V6 => (24, 16),
    };
    let number = |number: u32| number.to_ne_bytes().to_vec();
    let equals = |with| Expr::Compare { register: FIRST, negate: false, with };
    let and = |mask: Vec<u8>| Expr::Bitwise { register: FIRST, xor: vec![0; mask.len()], mask };
    vec![
        Expr::CtStatus(FIRST),
        and(number(SEEN_REPLY | CONFIRMED | DST_NAT)),
        equals(number(CONFIRMED | DST_NAT)),
        Expr::L4Proto(FIRST),
        equals(vec![libc::IPPROTO_TCP as u8]),
        Expr::TransportHeader { offset: 13, length: 1, to: FIRST },
        and(vec![SYN | ACK]),
        equals(vec![SYN]),
        Expr::NetworkHeader { offset: destination, length, to: FIRST },
        Expr::TransportHeader { offset: 2, length: 2, to: Register((length / 4) as u8) },
        Expr::UpdateSet { set: SET.to_owned(), key: FIRST, timeout: TIMEOUT.as_millis() as u64 },
    ]
}

/// Lists the repeated SYNs of a family.
///
/// # Errors
/// [`Error::Interrupted`] if another process commits meanwhile; some elements may be missing then.
pub(super) fn repeated_syns(
    kernel: &mut dyn Kernel,
    family: Family,
    now: Instant,
    mut each: impl FnMut(RepeatedSyn),
) -> Result<(), Error> {
    kernel.elements(table_family(family), TABLE, SET, &mut |element| {
        let Some(endpoint) = endpoint(family, element.key) else { return };
        let age = element.age.map_or(Duration::ZERO, |age| {
            Duration::from_millis(age.timeout.saturating_sub(age.left))
        });
        each(RepeatedSyn { endpoint, at: now.checked_sub(age).unwrap_or(now) });
    })
}

/// Decodes a key.
fn endpoint(family: Family, key: &[u8]) -> Option<SocketAddr> {
    let (address, rest) = match family {
        Family::V4 => {
            let (address, rest) = key.split_first_chunk::<4>()?;
            (IpAddr::V4(Ipv4Addr::from(*address)), rest)
        }
        Family::V6 => {
            let (address, rest) = key.split_first_chunk::<16>()?;
            (IpAddr::V6(Ipv6Addr::from(*address)), rest)
        }
    };
    Some(SocketAddr::new(address, u16::from_be_bytes(*rest.first_chunk::<2>()?)))
}

#[cfg(test)]
mod tests {
    use shunt_fake_nftables::{Features, Namespace};

    use super::*;

    fn tables(namespace: &Namespace) -> Vec<Family> {
        existing(&mut namespace.open()).expect("a listing")
    }

    #[test]
    fn tables_go_with_the_socket() -> Result<(), Error> {
        let namespace = Namespace::new();
        let mut socket = namespace.open();
        install(&mut socket, &Family::ALL)?;
        assert_eq!(tables(&namespace), Family::ALL);
        drop(socket);
        assert_eq!(tables(&namespace), []);
        Ok(())
    }

    /// Before Linux 5.12, a table has no owner.
    #[test]
    fn plain_tables_are_replaced_and_removed() -> Result<(), Error> {
        let namespace = Namespace::new();
        namespace.limit(Features { table_flags: 0, ..Features::default() });
        install(&mut namespace.open(), &Family::ALL)?;
        assert_eq!(tables(&namespace), Family::ALL);
        install(&mut namespace.open(), &[Family::V4])?;
        assert_eq!(tables(&namespace), [Family::V4]);
        assert_eq!(remove_tables(&mut namespace.open())?, 1);
        assert_eq!(remove_tables(&mut namespace.open())?, 0);
        Ok(())
    }

    #[test]
    fn endpoints_are_read_from_keys() {
        let mut key = vec![10, 244, 0, 7, 0x1f, 0x90, 0, 0];
        assert_eq!(endpoint(Family::V4, &key), "10.244.0.7:8080".parse().ok());
        key.splice(0..4, "fd00::7".parse::<Ipv6Addr>().expect("an address").octets());
        assert_eq!(endpoint(Family::V6, &key), "[fd00::7]:8080".parse().ok());
        assert_eq!(endpoint(Family::V6, &key[..16]), None);
    }
}
