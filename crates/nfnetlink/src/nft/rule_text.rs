//! The text of decoded statements, in the syntax of nft where it has one.

use std::fmt::Write;
use std::net::IpAddr;

use super::rule::{Comparison, Operand, Statement, Verdict};
use crate::Family;
use crate::attr::ip;

impl Statement {
    /// Writes the statement like `nft list ruleset`, for a table of that family. Anonymous sets have
    /// their internal names.
    #[must_use]
    pub fn text(&self, family: Family) -> String {
        match self {
            Statement::Compare(operand, comparison, bytes) => {
                compared(family, operand, *comparison, bytes)
            }
            Statement::InSet { key, set, negate } => {
                let not = if *negate { "!= " } else { "" };
                format!("{} {not}@{set}", fields(family, key))
            }
            Statement::VerdictMap { key, map } => format!("{} vmap @{map}", fields(family, key)),
            Statement::Verdict(verdict) => verdict.text(),
            Statement::DestinationNat { address, port } => {
                translated("dnat", family, address.as_ref(), port.as_ref())
            }
            Statement::SourceNat { address } => translated("snat", family, address.as_ref(), None),
            Statement::Masquerade { fully_random: true } => "masquerade fully-random".to_owned(),
            Statement::Masquerade { fully_random: false } => "masquerade".to_owned(),
            Statement::Reject { kind, code } => rejected(family, *kind, *code),
            Statement::SetMark(value) => format!("meta mark set {}", value.text(family)),
            Statement::Update { set, key, data, timeout } => {
                let timeout = match timeout {
                    0 => String::new(),
                    milliseconds => format!(" timeout {}", duration(*milliseconds)),
                };
                let data = match data.as_slice() {
                    [] => String::new(),
                    data => format!(" : {}", fields(family, data)),
                };
                format!("update @{set} {{ {}{timeout}{data} }}", fields(family, key))
            }
            Statement::SetTimeouts(name) => format!("ct timeout set \"{name}\""),
            Statement::Counter => "counter".to_owned(),
            Statement::Match(extension) => format!("xt match \"{}\"", extension.name),
            Statement::Target(extension) => format!("xt target \"{}\"", extension.name),
            Statement::Unknown(name) => format!("({name})"),
        }
    }
}

impl Verdict {
    /// Writes the verdict like nft.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Verdict::Accept => "accept".to_owned(),
            Verdict::Drop => "drop".to_owned(),
            Verdict::Return => "return".to_owned(),
            Verdict::Jump(chain) => format!("jump {chain}"),
            Verdict::Goto(chain) => format!("goto {chain}"),
            Verdict::Other(code) => format!("(verdict {code})"),
        }
    }
}

impl Operand {
    /// Writes the operand like nft.
    #[must_use]
    pub fn text(&self, family: Family) -> String {
        match self {
            Operand::Network { offset, length } => match (family, *offset, *length) {
                (Family::Ip, 12, 1..=4) => "ip saddr".to_owned(),
                (Family::Ip, 16, 1..=4) => "ip daddr".to_owned(),
                (Family::Ip, 9, 1) => "ip protocol".to_owned(),
                (Family::Ip6, 8, 1..=16) => "ip6 saddr".to_owned(),
                (Family::Ip6, 24, 1..=16) => "ip6 daddr".to_owned(),
                (Family::Ip6, 6, 1) => "ip6 nexthdr".to_owned(),
                _ => format!("@nh,{},{}", bits(*offset), bits(*length)),
            },
            Operand::Transport { offset: 0, length: 2 } => "th sport".to_owned(),
            Operand::Transport { offset: 2, length: 2 } => "th dport".to_owned(),
            Operand::Transport { offset, length } => {
                format!("@th,{},{}", bits(*offset), bits(*length))
            }
            Operand::Protocol => "meta l4proto".to_owned(),
            Operand::Mark => "meta mark".to_owned(),
            Operand::InputInterface => "iifname".to_owned(),
            Operand::OutputInterface => "oifname".to_owned(),
            Operand::Connection(key, direction) => connection(*key, *direction),
            Operand::AddressType { source: true } => "fib saddr type".to_owned(),
            Operand::AddressType { source: false } => "fib daddr type".to_owned(),
            Operand::Number { modulus, random } => {
                let how = if *random { "random" } else { "inc" };
                format!("numgen {how} mod {modulus}")
            }
            Operand::Hash { key, modulus, seed } => {
                format!("jhash {} mod {modulus} seed 0x{seed:08x}", fields(family, key))
            }
            Operand::MapValue { map, key } => format!("{} map @{map}", fields(family, key)),
            Operand::Bytes(bytes) => hexadecimal(bytes),
            Operand::Bits { of, mask, xor } => {
                let of = of.text(family);
                let (zero, inverse) =
                    (xor.iter().all(|byte| *byte == 0), xor.iter().map(|byte| !byte));
                if zero {
                    format!("{of} & {}", number(mask))
                } else if inverse.eq(mask.iter().copied()) {
                    format!("{of} | {}", number(xor))
                } else if mask.iter().all(|byte| *byte == 0xff) {
                    format!("{of} ^ {}", number(xor))
                } else {
                    format!("({of} & {}) ^ {}", number(mask), number(xor))
                }
            }
            Operand::Unknown(name) => format!("({name})"),
        }
    }
}

/// Returns the number of bits in as many bytes.
fn bits(bytes: u32) -> u64 {
    u64::from(bytes) * 8
}

/// Writes a time like nft: `3h`, `1d2h`.
fn duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1_000;
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (milliseconds % 1_000, "ms"),
    ];
    parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect()
}

fn rejected(family: Family, kind: u32, code: u8) -> String {
    /// `ICMP_PORT_UNREACH` and `ICMPV6_PORT_UNREACH`.
    const PORT_UNREACHABLE: [u8; 2] = [3, 4];
    let [v4, v6] = PORT_UNREACHABLE;
    let default = if family == Family::Ip { v4 } else { v6 };
    match i32::try_from(kind) {
        Ok(libc::NFT_REJECT_ICMP_UNREACH) if code == default => "reject".to_owned(),
        Ok(libc::NFT_REJECT_ICMP_UNREACH) => format!("reject with icmp {code}"),
        Ok(libc::NFT_REJECT_TCP_RST) => "reject with tcp reset".to_owned(),
        _ => format!("reject with icmpx {code}"),
    }
}

fn fields(family: Family, key: &[Operand]) -> String {
    key.iter().map(|field| field.text(family)).collect::<Vec<_>>().join(" . ")
}

fn translated(
    kind: &str,
    family: Family,
    address: Option<&Operand>,
    port: Option<&Operand>,
) -> String {
    match (address, port) {
        (Some(Operand::Bytes(address)), Some(Operand::Bytes(port))) => {
            match (ip(address), port.first_chunk()) {
                (Some(IpAddr::V6(address)), Some(port)) => {
                    format!("{kind} to [{address}]:{}", u16::from_be_bytes(*port))
                }
                (Some(address), Some(port)) => {
                    format!("{kind} to {address}:{}", u16::from_be_bytes(*port))
                }
                _ => kind.to_owned(),
            }
        }
        (Some(value @ Operand::MapValue { .. }), Some(_)) => {
            format!("{kind} {family} addr . port to {}", value.text(family))
        }
        (Some(Operand::Bytes(address)), None) if ip(address).is_some() => {
            ip(address).map_or(kind.to_owned(), |address| format!("{kind} to {address}"))
        }
        (Some(value), _) => format!("{kind} to {}", value.text(family)),
        (None, _) => kind.to_owned(),
    }
}

fn connection(key: u32, direction: Option<u8>) -> String {
    const NAMES: [&str; 13] = [
        "state",
        "direction",
        "status",
        "mark",
        "secmark",
        "expiration",
        "helper",
        "l3proto",
        "saddr",
        "daddr",
        "protocol",
        "proto-src",
        "proto-dst",
    ];
    let name = match i32::try_from(key) {
        Ok(libc::NFT_CT_SRC_IP) => "ip saddr",
        Ok(libc::NFT_CT_DST_IP) => "ip daddr",
        Ok(libc::NFT_CT_SRC_IP6) => "ip6 saddr",
        Ok(libc::NFT_CT_DST_IP6) => "ip6 daddr",
        _ => NAMES.get(key as usize).copied().unwrap_or("(key)"),
    };
    match direction {
        Some(0) => format!("ct original {name}"),
        Some(_) => format!("ct reply {name}"),
        None => format!("ct {name}"),
    }
}

fn compared(family: Family, operand: &Operand, comparison: Comparison, bytes: &[u8]) -> String {
    if let (Operand::Bits { of, mask, .. }, Comparison::Equal) = (operand, comparison)
        && let (Operand::Transport { offset: 13, length: 1 }, [mask], [value]) =
            (&**of, mask.as_slice(), bytes)
    {
        return format!("tcp flags & ({}) == {}", tcp_flags(*mask), tcp_flags(*value));
    }
    let zero = bytes.iter().all(|byte| *byte == 0);
    // `ct state new` is a bit that is not zero.
    if let (Operand::Bits { of, mask, .. }, Comparison::NotEqual, true) =
        (operand, comparison, zero)
        && let Operand::Connection(key, None) = &**of
        && let Some(names) = bit_names(*key)
        && let Some(mask) = mask.first_chunk()
    {
        let mask = u32::from_ne_bytes(*mask);
        let names = names.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| *name);
        let text = names.collect::<Vec<_>>().join(",");
        return format!("{} {text}", of.text(family));
    }
    let (left, value) = match (operand, address(family, operand, bytes)) {
        (Operand::Bits { of, .. }, Some(address)) => (of.text(family), address),
        (operand, Some(address)) => (operand.text(family), address),
        (operand, None) => (operand.text(family), constant(operand, bytes)),
    };
    let comparison = match comparison {
        // nft leaves out `==` but for bits.
        Comparison::Equal if matches!(operand, Operand::Bits { .. }) && left.contains('&') => "== ",
        Comparison::Equal => "",
        Comparison::NotEqual => "!= ",
        Comparison::Less => "< ",
        Comparison::LessOrEqual => "<= ",
        Comparison::Greater => "> ",
        Comparison::GreaterOrEqual => ">= ",
    };
    format!("{left} {comparison}{value}")
}

/// Returns the names of the flags of TCP that are set.
fn tcp_flags(bits: u8) -> String {
    const NAMES: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"];
    let set = NAMES.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join("|")
}

/// Writes the address or prefix with which an address of the network header is compared; `None` for
/// other operands.
fn address(family: Family, operand: &Operand, bytes: &[u8]) -> Option<String> {
    let (plain, mask) = match operand {
        Operand::Bits { of, mask, xor } if xor.iter().all(|byte| *byte == 0) => (&**of, Some(mask)),
        plain => (plain, None),
    };
    let Operand::Network { offset, length } = plain else { return None };
    let (places, size) = match family {
        Family::Ip => ([12, 16], 4),
        Family::Ip6 => ([8, 24], 16),
    };
    if !places.contains(offset) || *length as usize > size {
        return None;
    }
    let bits: usize = match mask {
        None => bytes.len() * 8,
        Some(mask) => mask.iter().map(|byte| byte.leading_ones() as usize).sum(),
    };
    let mut whole = bytes.to_vec();
    whole.resize(size, 0);
    let address = ip(&whole)?;
    Some(if bits == size * 8 { address.to_string() } else { format!("{address}/{bits}") })
}

/// Writes a constant with which the operand is compared.
fn constant(operand: &Operand, bytes: &[u8]) -> String {
    match (operand, bytes) {
        (Operand::Protocol | Operand::Network { length: 1, .. }, [number]) => {
            match i32::from(*number) {
                libc::IPPROTO_TCP => "tcp".to_owned(),
                libc::IPPROTO_UDP => "udp".to_owned(),
                libc::IPPROTO_SCTP => "sctp".to_owned(),
                libc::IPPROTO_ICMP => "icmp".to_owned(),
                libc::IPPROTO_ICMPV6 => "ipv6-icmp".to_owned(),
                other => other.to_string(),
            }
        }
        (Operand::Transport { length: 2, .. }, [high, low]) => {
            u16::from_be_bytes([*high, *low]).to_string()
        }
        (Operand::InputInterface | Operand::OutputInterface, name) => {
            let end = name.iter().position(|byte| *byte == 0);
            let any = if end.is_none() { "*" } else { "" };
            let name = String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]);
            format!("\"{name}{any}\"")
        }
        (Operand::AddressType { .. }, bytes) => {
            let kind = bytes.first_chunk().map(|kind| u32::from_ne_bytes(*kind));
            match kind.and_then(|kind| u8::try_from(kind).ok()) {
                Some(libc::RTN_UNICAST) => "unicast".to_owned(),
                Some(libc::RTN_LOCAL) => "local".to_owned(),
                Some(libc::RTN_BROADCAST) => "broadcast".to_owned(),
                Some(libc::RTN_MULTICAST) => "multicast".to_owned(),
                _ => hexadecimal(bytes),
            }
        }
        (Operand::Mark | Operand::Bits { .. } | Operand::Connection(..), bytes) => number(bytes),
        (_, bytes) => hexadecimal(bytes),
    }
}

/// Returns the names of the bits of `ct state` and `ct status`.
fn bit_names(key: u32) -> Option<&'static [(u32, &'static str)]> {
    match i32::try_from(key).ok()? {
        libc::NFT_CT_STATE => Some(&[
            (1, "invalid"),
            (2, "established"),
            (4, "related"),
            (8, "new"),
            (64, "untracked"),
        ]),
        libc::NFT_CT_STATUS => Some(&[
            (1, "expected"),
            (2, "seen-reply"),
            (4, "assured"),
            (8, "confirmed"),
            (16, "snat"),
            (32, "dnat"),
            (512, "dying"),
        ]),
        _ => None,
    }
}

/// Writes a number of four bytes in host order like nft, and other bytes in their order.
fn number(bytes: &[u8]) -> String {
    match bytes.try_into() {
        Ok(number) => format!("0x{:08x}", u32::from_ne_bytes(number)),
        Err(_) => hexadecimal(bytes),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = "0x".to_owned();
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
