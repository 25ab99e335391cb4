//! The chains of legacy iptables, which keeps its rules outside of nf_tables.
//!
//! A table is an array of entries, which are rules. A user-defined chain begins with an entry whose
//! target is `ERROR` and holds the name of the chain. The last entry of a base chain is its policy.
//! Source:
//! `include/uapi/linux/netfilter_ipv4/ip_tables.h`, its IPv6 counterpart, and
//! `include/uapi/linux/netfilter/x_tables.h`.
#![allow(unsafe_code, reason = "getsockopt with structures of ip_tables, which nix does not have")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::Family;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: i32 = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: i32 = 65;
/// `XT_TABLE_MAXNAMELEN`, the size of a table's name with its NUL.
const TABLE_NAME: usize = 32;
/// The size of `struct ipt_getinfo`, and the offsets of `num_entries` and `size`, which count all entries.
const INFO: usize = 84;
const INFO_COUNT: usize = 76;
const INFO_SIZE: usize = 80;
/// The offsets of `valid_hooks`, a bit mask, and of `underflow` in `struct ipt_getinfo`: for each
/// hook, the place of its policy among the entries.
const INFO_HOOKS: usize = 32;
const INFO_UNDERFLOW: usize = 56;
/// `NF_INET_FORWARD`, and `NF_INET_NUMHOOKS`.
const FORWARD: usize = 2;
const HOOKS: usize = 5;
/// The verdicts of policies: `-NF_DROP - 1` and `-NF_ACCEPT - 1` (`xt_standard_target`).
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
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
    Ok(tables(family)?.iter().flat_map(|table| chain_names(&table.entries, table.target)).collect())
}

/// Returns true if the chain FORWARD of legacy iptables has the policy DROP in the network namespace
/// of this thread. Loads no table.
///
/// # Errors
/// As for [`legacy_chains`].
pub fn legacy_forward_drops(family: Family) -> io::Result<bool> {
    Ok(tables(family)?.iter().any(|table| table.policy(FORWARD) == Some(DROP)))
}

/// Returns the names of the tables of legacy iptables in the network namespace of this thread in which
/// a packet meets more than policies that accept it: a mere listing by `iptables-legacy` makes empty
/// tables. Loads no table.
///
/// # Errors
/// As for [`legacy_chains`].
pub fn legacy_tables_in_effect(family: Family) -> io::Result<Vec<String>> {
    let tables = tables(family)?.into_iter().filter(LegacyTable::has_effect);
    Ok(tables.map(|table| table.name).collect())
}

/// A table in the kernel's form.
struct LegacyTable {
    name: String,
    /// `struct ipt_getinfo`.
    info: Vec<u8>,
    entries: Vec<u8>,
    /// The place of `target_offset` in `struct ipt_entry` or `struct ip6t_entry`; `next_offset` follows.
    target: usize,
}

/// Reads the tables that are in use.
fn tables(family: Family) -> io::Result<Vec<LegacyTable>> {
    let names = match family {
        Family::Ip => "/proc/thread-self/net/ip_tables_names",
        Family::Ip6 => "/proc/thread-self/net/ip6_tables_names",
    };
    let names = match fs::read_to_string(names) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let names = names.split_whitespace().filter(|name| name.len() < TABLE_NAME);
    names.map(|name| LegacyTable::read(family, name)).collect()
}

impl LegacyTable {
    fn read(family: Family, name: &str) -> io::Result<LegacyTable> {
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
        Ok(LegacyTable { name: name.to_owned(), info, entries, target: target(family) })
    }

    fn info(&self, at: usize) -> Option<usize> {
        self.info.get(at..at + 4).map(number)
    }

    fn has_effect(&self) -> bool {
        // A policy for each hook, and the entry that ends the table.
        let hooks = self.info(INFO_HOOKS).unwrap_or(0).count_ones() as usize;
        let mut policies = (0..HOOKS).filter_map(|hook| self.policy(hook));
        self.info(INFO_COUNT) != Some(hooks + 1) || policies.any(|verdict| verdict != ACCEPT)
    }

    /// Returns the verdict of the policy of a hook's base chain, if the table has one.
    fn policy(&self, hook: usize) -> Option<i32> {
        if self.info(INFO_HOOKS)? & (1 << hook) == 0 {
            return None;
        }
        let entry = self.entries.get(self.info(INFO_UNDERFLOW + 4 * hook)?..)?;
        let target = entry.get(self.target..self.target + 2).map(short)?;
        let verdict = entry.get(target.checked_add(TARGET)?..)?.first_chunk()?;
        Some(i32::from_ne_bytes(*verdict))
    }
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

/// See [`LegacyTable::target`].
fn target(family: Family) -> usize {
    match family {
        Family::Ip => 88,
        Family::Ip6 => 140,
    }
}

/// Returns the entries of a table. Ends at the first malformed entry.
fn split(mut rest: &[u8], target: usize) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let next = short(rest.get(target + 2..target + 4)?);
        let entry = rest.get(..next).filter(|entry| entry.len() > target + 4)?;
        rest = rest.get(next..).unwrap_or(&[]);
        Some(entry)
    })
}

/// Returns the names of the user-defined chains.
fn chain_names(entries: &[u8], target: usize) -> impl Iterator<Item = String> {
    split(entries, target).filter_map(move |entry| {
        let target = entry.get(short(entry.get(target..target + 2)?)..)?;
        let kind = target.get(TARGET_NAME..)?;
        let name = target.get(TARGET..).filter(|_| kind.starts_with(ERROR_TARGET))?;
        let end = name.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&name[..end]).ok()?;
        // The last entry of a table has the target `ERROR` and the name `ERROR`, and is no chain.
        (name != "ERROR").then(|| name.to_owned())
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
            let name = "filter".to_owned();
            LegacyTable { name, info, entries, target: target(Family::Ip) }
        };
        assert_eq!(table(DROP).policy(FORWARD), Some(DROP));
        assert_eq!(table(-2).policy(FORWARD), Some(-2));
        assert_eq!(table(DROP).policy(0), None, "`filter` has no chain PREROUTING");
        let whole = table(DROP);
        for length in 0..whole.entries.len() {
            let cut = LegacyTable { entries: whole.entries[..length].to_vec(), ..table(DROP) };
            assert!([None, Some(DROP)].contains(&cut.policy(FORWARD)));
        }
        assert_eq!(LegacyTable { info: Vec::new(), ..whole }.policy(FORWARD), None);
    }

    #[test]
    fn chains_of_legacy_iptables_are_named() {
        for (family, bytes) in TABLES {
            let target = target(family);
            let chains =
                ["DOCKER", "KUBE-POSTROUTING", "KUBE-SERVICES", "KUBE-SVC-ERIFXISQEP7F7OF4"];
            let names: Vec<String> = chain_names(bytes, target).collect();
            assert_eq!(names, chains);
            for length in 0..bytes.len() {
                assert!(chain_names(&bytes[..length], target).count() <= chains.len());
            }
        }
    }
}
