//! The chains and rules of legacy iptables, which keeps its rules outside of nf_tables.
//!
//! A table is an array of entries, which are rules. A user-defined chain begins with an entry whose
//! target is `ERROR` and holds the name of the chain. The last entry of a base chain is its policy.
//! Source:
//! `include/uapi/linux/netfilter_ipv4/ip_tables.h`, its IPv6 counterpart, and
//! `include/uapi/linux/netfilter/x_tables.h`.
#![allow(unsafe_code, reason = "getsockopt with structures of ip_tables, which nix does not have")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::Family;
use crate::nft::{Comparison, Extension, Operand, Statement, Verdict};

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: i32 = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: i32 = 65;
/// `XT_TABLE_MAXNAMELEN`, the size of a table's name with its NUL.
const TABLE_NAME: usize = 32;
/// The size of `struct ipt_getinfo`, and the offset of its `size`, the size of all entries.
const INFO: usize = 84;
const INFO_SIZE: usize = 80;
/// The offsets of `valid_hooks`, a bit mask, and of `underflow` in `struct ipt_getinfo`: for each
/// hook, the place of its policy among the entries.
const INFO_HOOKS: usize = 32;
const INFO_UNDERFLOW: usize = 56;
/// `NF_INET_FORWARD`.
const FORWARD: usize = 2;
/// The verdict of a policy is `-NF_DROP - 1` for DROP (`xt_standard_target`).
const DROP: i32 = -1;
/// The offset of the entries in `struct ipt_get_entries`.
const ENTRIES: usize = 40;
/// The size of `struct xt_entry_target`, and the offset of its name.
const TARGET: usize = 32;
const TARGET_NAME: usize = 2;
/// `XT_ERROR_TARGET`, with its NUL.
const ERROR_TARGET: &[u8] = b"ERROR\0";

/// Lists the user-defined chains in all tables of legacy iptables in the network namespace of this
/// thread. Loads no table, since it reads only tables that are in use.
///
/// # Errors
/// If the kernel refuses to dump a table, for example without CAP_NET_ADMIN.
pub fn legacy_chains(family: Family) -> io::Result<Vec<String>> {
    let mut chains = Vec::new();
    for name in legacy_tables(family)? {
        let table = dump(family, &name)?;
        chains.extend(chain_names(&table.entries, Layout::of(family)).into_values());
    }
    Ok(chains)
}

/// Lists the rules of the user-defined chains of a table of legacy iptables in the network namespace
/// of this thread, each with the name of its chain; none if the table is not in use.
///
/// # Errors
/// If the kernel refuses to dump the table, for example without CAP_NET_ADMIN.
pub fn legacy_rules(family: Family, table: &str) -> io::Result<Vec<(String, Vec<Statement>)>> {
    if !legacy_tables(family)?.iter().any(|name| name == table) {
        return Ok(Vec::new());
    }
    Ok(rules(&dump(family, table)?.entries, Layout::of(family)))
}

/// Returns true if the chain FORWARD of legacy iptables has the policy DROP in the network namespace
/// of this thread. Loads no table.
///
/// # Errors
/// As for [`legacy_chains`].
pub fn legacy_forward_drops(family: Family) -> io::Result<bool> {
    for name in legacy_tables(family)? {
        if policy(&dump(family, &name)?, FORWARD, Layout::of(family)) == Some(DROP) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A table in the kernel's form.
struct Table {
    /// `struct ipt_getinfo`.
    info: Vec<u8>,
    entries: Vec<u8>,
}

/// Returns the names of the tables that are in use.
fn legacy_tables(family: Family) -> io::Result<Vec<String>> {
    let names = match family {
        Family::Ip => "/proc/thread-self/net/ip_tables_names",
        Family::Ip6 => "/proc/thread-self/net/ip6_tables_names",
    };
    let names = match fs::read_to_string(names) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let names = names.split_whitespace().filter(|name| name.len() < TABLE_NAME);
    Ok(names.map(str::to_owned).collect())
}

/// Reads a table.
fn dump(family: Family, name: &str) -> io::Result<Table> {
    let (domain, level) = match family {
        Family::Ip => (AddressFamily::Inet, libc::SOL_IP),
        Family::Ip6 => (AddressFamily::Inet6, libc::SOL_IPV6),
    };
    let socket = socket(domain, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut info = vec![0; INFO];
    info[..name.len()].copy_from_slice(name.as_bytes());
    get(&socket, level, GET_INFO, &mut info)?;
    let size = &info[INFO_SIZE..INFO_SIZE + 4];
    let mut entries = vec![0; ENTRIES + number(size)];
    entries[..name.len()].copy_from_slice(name.as_bytes());
    entries[TABLE_NAME..TABLE_NAME + 4].copy_from_slice(size);
    get(&socket, level, GET_ENTRIES, &mut entries)?;
    entries.drain(..ENTRIES);
    Ok(Table { info, entries })
}

/// Returns the verdict of the policy of a hook's base chain, if the table has one.
fn policy(table: &Table, hook: usize, layout: Layout) -> Option<i32> {
    let info = |at: usize| table.info.get(at..at + 4).map(number);
    if info(INFO_HOOKS)? & (1 << hook) == 0 {
        return None;
    }
    let entry = table.entries.get(info(INFO_UNDERFLOW + 4 * hook)?..)?;
    let target = entry.get(layout.target..layout.target + 2).map(short)?;
    let verdict = entry.get(target.checked_add(TARGET)?..)?.first_chunk()?;
    Some(i32::from_ne_bytes(*verdict))
}

fn get(socket: &OwnedFd, level: i32, option: i32, buffer: &mut [u8]) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to the buffer,
    // which has as many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(result)?;
    Ok(())
}

/// The offsets in `struct ipt_entry` and `struct ip6t_entry`.
#[derive(Clone, Copy)]
struct Layout {
    family: Family,
    /// The size of an address.
    address: usize,
    /// The name of the incoming interface. Its mask is 32 bytes behind.
    interface: usize,
    protocol: usize,
    flags: usize,
    inverted: usize,
    /// `target_offset`; `next_offset` follows it.
    target: usize,
    /// The matches.
    matches: usize,
}

impl Layout {
    fn of(family: Family) -> Layout {
        match family {
            Family::Ip => Layout {
                family,
                address: 4,
                interface: 16,
                protocol: 80,
                flags: 82,
                inverted: 83,
                target: 88,
                matches: 112,
            },
            Family::Ip6 => Layout {
                family,
                address: 16,
                interface: 64,
                protocol: 128,
                flags: 131,
                inverted: 132,
                target: 140,
                matches: 168,
            },
        }
    }
}

/// Bits of `invflags` and `flags`.
const INVERTED_INTERFACE: u8 = 0x01;
const INVERTED_SOURCE: u8 = 0x08;
const INVERTED_DESTINATION: u8 = 0x10;
const INVERTED_PROTOCOL: u8 = 0x40;
const FLAG_GOTO: u8 = 0x02;

/// Returns the entries of a table with their offsets. Ends at the first malformed entry.
fn split(mut rest: &[u8], layout: Layout) -> impl Iterator<Item = (usize, &[u8])> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let next = short(rest.get(layout.target + 2..layout.target + 4)?);
        let entry = rest.get(..next).filter(|entry| entry.len() > layout.target + 4)?;
        let at = offset;
        (rest, offset) = (rest.get(next..).unwrap_or(&[]), offset + next);
        Some((at, entry))
    })
}

/// A target or match: its name, its revision and its structure.
fn extension(bytes: &[u8]) -> Option<Extension> {
    let size = short(bytes.get(..2)?);
    let bytes = bytes.get(..size)?;
    let name = bytes.get(TARGET_NAME..TARGET - 1)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Some(Extension {
        name: std::str::from_utf8(&name[..end]).ok()?.to_owned(),
        revision: u32::from(*bytes.get(TARGET - 1)?),
        info: bytes.get(TARGET..)?.to_vec(),
    })
}

/// Returns the names of the user-defined chains, by the offset of their first rule.
fn chain_names(entries: &[u8], layout: Layout) -> BTreeMap<usize, String> {
    let name = |(offset, entry): (usize, &[u8])| {
        let target = entry.get(short(entry.get(layout.target..layout.target + 2)?)..)?;
        let kind = target.get(TARGET_NAME..)?;
        let name = target.get(TARGET..).filter(|_| kind.starts_with(ERROR_TARGET))?;
        let end = name.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&name[..end]).ok()?;
        // The last entry of a table has the target `ERROR` and the name `ERROR`, and is no chain.
        (name != "ERROR").then(|| (offset + entry.len(), name.to_owned()))
    };
    split(entries, layout).filter_map(name).collect()
}

/// Returns the rules of the user-defined chains.
fn rules(entries: &[u8], layout: Layout) -> Vec<(String, Vec<Statement>)> {
    let names = chain_names(entries, layout);
    let mut chain: Option<&String> = None;
    let mut rules = Vec::new();
    for (offset, entry) in split(entries, layout) {
        chain = names.get(&offset).or(chain);
        if let (Some(chain), Some(rule)) = (chain, rule(entry, layout, &names)) {
            rules.push((chain.clone(), rule));
        }
    }
    rules
}

/// Decodes a rule; `None` for the start of a chain.
fn rule(entry: &[u8], layout: Layout, names: &BTreeMap<usize, String>) -> Option<Vec<Statement>> {
    let mut statements = Vec::new();
    let inverted = *entry.get(layout.inverted)?;
    let comparison = |bit| match inverted & bit {
        0 => Comparison::Equal,
        _ => Comparison::NotEqual,
    };
    let (source, destination) = if layout.family == Family::Ip { (12, 16) } else { (8, 24) };
    let size = layout.address;
    for (place, offset, bit) in
        [(0, source, INVERTED_SOURCE), (1, destination, INVERTED_DESTINATION)]
    {
        let address = entry.get(place * size..(place + 1) * size)?;
        let mask = entry.get((place + 2) * size..(place + 3) * size)?;
        if mask.iter().any(|byte| *byte != 0) {
            let of = Box::new(Operand::Network { offset, length: size as u32 });
            let masked = Operand::Bits { of, mask: mask.to_vec(), xor: vec![0; size] };
            statements.push(Statement::Compare(masked, comparison(bit), address.to_vec()));
        }
    }
    let name = entry.get(layout.interface..layout.interface + libc::IFNAMSIZ)?;
    let mask = entry.get(layout.interface + 32..layout.interface + 32 + libc::IFNAMSIZ)?;
    let length = mask.iter().take_while(|byte| **byte != 0).count();
    if length > 0 {
        let comparison = comparison(INVERTED_INTERFACE);
        let name = name[..length].to_vec();
        statements.push(Statement::Compare(Operand::InputInterface, comparison, name));
    }
    let protocol = short(entry.get(layout.protocol..layout.protocol + 2)?);
    if let Ok(number @ 1..) = u8::try_from(protocol) {
        let comparison = comparison(INVERTED_PROTOCOL);
        statements.push(Statement::Compare(Operand::Protocol, comparison, vec![number]));
    }
    let target = short(entry.get(layout.target..layout.target + 2)?);
    let mut matches = entry.get(layout.matches..target)?;
    while let Some(found) = extension(matches) {
        matches = matches.get(TARGET + found.info.len()..).unwrap_or(&[]);
        statements.push(Statement::Match(found));
    }
    statements.push(match extension(entry.get(target..)?)? {
        Extension { name, .. } if name == "ERROR" => return None,
        Extension { name, info, .. } if name.is_empty() => {
            let verdict = i32::from_ne_bytes(*info.first_chunk()?);
            let goes = *entry.get(layout.flags)? & FLAG_GOTO != 0;
            verdict_of(verdict, goes, names)?
        }
        target => Statement::Target(target),
    });
    Some(statements)
}

/// Decodes a standard target: the offset of a chain, or `-verdict - 1`. A jump to the next rule is a
/// rule without a target.
fn verdict_of(verdict: i32, goes: bool, names: &BTreeMap<usize, String>) -> Option<Statement> {
    /// `XT_RETURN`.
    const RETURN: i32 = -libc::NF_REPEAT - 1;
    const ACCEPT: i32 = -libc::NF_ACCEPT - 1;
    const DROP: i32 = -libc::NF_DROP - 1;
    Some(match verdict {
        DROP => Statement::Verdict(Verdict::Drop),
        ACCEPT => Statement::Verdict(Verdict::Accept),
        RETURN => Statement::Verdict(Verdict::Return),
        ..0 => Statement::Verdict(Verdict::Other(verdict)),
        offset => match names.get(&usize::try_from(offset).ok()?) {
            Some(chain) if goes => Statement::Verdict(Verdict::Goto(chain.clone())),
            Some(chain) => Statement::Verdict(Verdict::Jump(chain.clone())),
            None => Statement::Counter,
        },
    })
}

fn short(bytes: &[u8]) -> usize {
    bytes.try_into().map_or(0, |bytes| u16::from_ne_bytes(bytes).into())
}

fn number(bytes: &[u8]) -> usize {
    bytes.try_into().map_or(0, |bytes| u32::from_ne_bytes(bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dumps of tables that `iptables-legacy -t nat` and `ip6tables-legacy -t nat` wrote: chains of
    /// kube-proxy and one of another program.
    const TABLES: [(Family, &[u8]); 2] = [
        (Family::Ip, include_bytes!("../tests/fixtures/legacy-iptables/nat-v4")),
        (Family::Ip6, include_bytes!("../tests/fixtures/legacy-iptables/nat-v6")),
    ];

    /// The base chains of `filter` are INPUT, FORWARD and OUTPUT, here one entry each.
    #[test]
    fn policy_of_a_base_chain_is_its_last_entry() {
        const ENTRY: usize = 152;
        let table = |verdict: i32| {
            let mut info = vec![0; INFO];
            info[INFO_HOOKS] = 0b1110;
            let mut entries = Vec::new();
            for hook in 1..4 {
                let at = INFO_UNDERFLOW + 4 * hook;
                info[at..at + 4].copy_from_slice(&(entries.len() as u32).to_ne_bytes());
                let mut entry = vec![0; ENTRY];
                entry[88..92].copy_from_slice(&[112, 0, ENTRY as u8, 0]);
                let verdict = if hook == FORWARD { verdict } else { -2 };
                entry[112 + TARGET..112 + TARGET + 4].copy_from_slice(&verdict.to_ne_bytes());
                entries.extend(entry);
            }
            Table { info, entries }
        };
        assert_eq!(policy(&table(DROP), FORWARD, Layout::of(Family::Ip)), Some(DROP));
        assert_eq!(policy(&table(-2), FORWARD, Layout::of(Family::Ip)), Some(-2));
        assert_eq!(
            policy(&table(DROP), 0, Layout::of(Family::Ip)),
            None,
            "`filter` has no chain PREROUTING"
        );
        let whole = table(DROP);
        for length in 0..whole.entries.len() {
            let cut = Table { info: whole.info.clone(), entries: whole.entries[..length].to_vec() };
            assert!([None, Some(DROP)].contains(&policy(&cut, FORWARD, Layout::of(Family::Ip))));
        }
        assert_eq!(
            policy(&Table { info: Vec::new(), ..whole }, FORWARD, Layout::of(Family::Ip)),
            None
        );
    }

    #[test]
    fn chains_of_legacy_iptables_are_named() {
        for (family, bytes) in TABLES {
            let layout = Layout::of(family);
            let chains =
                ["DOCKER", "KUBE-POSTROUTING", "KUBE-SERVICES", "KUBE-SVC-ERIFXISQEP7F7OF4"];
            let names: Vec<String> = chain_names(bytes, layout).into_values().collect();
            assert_eq!(names, chains);
            for length in 0..bytes.len() {
                assert!(chain_names(&bytes[..length], layout).len() <= chains.len());
            }
        }
    }

    #[test]
    fn rules_of_legacy_iptables_are_decoded() {
        for (family, bytes) in TABLES {
            let layout = Layout::of(family);
            let texts: Vec<String> = rules(bytes, layout)
                .iter()
                .map(|(chain, rule)| {
                    let texts: Vec<String> = rule.iter().map(|it| it.text(family)).collect();
                    format!("{chain}: {}", texts.join(" "))
                })
                .collect();
            // Every chain ends with a rule for its policy.
            let expected = [
                "DOCKER: return",
                "KUBE-POSTROUTING: return",
                "KUBE-SERVICES: meta l4proto tcp jump KUBE-SVC-ERIFXISQEP7F7OF4",
                "KUBE-SERVICES: return",
                "KUBE-SVC-ERIFXISQEP7F7OF4: return",
            ];
            assert_eq!(texts, expected, "{family}");
            for length in 0..bytes.len() {
                assert!(rules(&bytes[..length], layout).len() <= texts.len());
            }
        }
    }
}
