//! The text of rules, in the syntax of nft where it has one.
//!
//! The kernel lists a rule as expressions that load, change and use registers. The text follows the
//! registers, so that each statement has its operands.

use std::fmt::Write;
use std::net::SocketAddr;

use super::expr::{
    Bitwise, Comparison, Expr, FIB_ADDRESS_TYPE, FIB_DESTINATION, FIB_SOURCE, Register, Wanted,
    port_unreachable,
};
use super::uapi::NFT_OBJECT_CT_TIMEOUT;
use crate::Family;
use crate::attr::ip;

/// Writes a rule like `nft list ruleset`, for a table of that family. Anonymous sets have their
/// internal names, and expressions that are not decoded stand in parentheses.
#[must_use]
pub fn rule_text(family: Family, rule: &[Expr]) -> String {
    let mut text = Text { family, registers: Default::default() };
    let statements = rule.iter().enumerate().filter_map(|(order, expr)| {
        let statement = text.statement(order, expr);
        statement.unwrap_or_else(|| Some(format!("({})", expr.name())))
    });
    statements.collect::<Vec<_>>().join(" ")
}

/// A value in a register.
#[derive(Debug, Clone)]
struct Operand<'a> {
    /// The expression that loaded it.
    from: &'a Expr,
    /// Its position in the rule.
    order: usize,
    /// The value as `from` loaded it.
    plain: String,
    /// The mask, and the bits that were flipped after masking.
    bits: Option<(&'a [u8], &'a [u8])>,
}

/// The operands in the registers, each at its first register.
struct Text<'a> {
    family: Family,
    registers: [Option<Operand<'a>>; Register::COUNT],
}

impl<'a> Text<'a> {
    /// Returns the text of a statement. For an expression that only loads a register, the text is
    /// `None`. Returns `None` for a statement without text.
    fn statement(&mut self, order: usize, expr: &'a Expr) -> Option<Option<String>> {
        let family = self.family;
        Some(Some(match expr {
            Expr::Verdict(verdict) => verdict.to_string(),
            Expr::Compare { from, comparison, with } => {
                compared(family, self.load(*from)?, *comparison, with)
            }
            Expr::Lookup { set, key, wanted } => {
                let fields = self.fields(*key, Register::COUNT)?;
                match wanted {
                    Wanted::Member => format!("{fields} @{set}"),
                    Wanted::NoMember => format!("{fields} != @{set}"),
                    Wanted::Verdict => format!("{fields} vmap @{set}"),
                    Wanted::Value(to) => {
                        return self.store(*to, order, expr, format!("{fields} map @{set}"));
                    }
                }
            }
            Expr::Nat { destination, address, port, .. } => {
                let kind = if *destination { "dnat" } else { "snat" };
                let operand = |register: &Option<Register>| {
                    register.map_or(Some(None), |register| self.load(register).map(Some))
                };
                translated(kind, family, operand(address)?, operand(port)?)
            }
            Expr::Masquerade { fully_random: true } => "masquerade fully-random".to_owned(),
            Expr::Masquerade { fully_random: false } => "masquerade".to_owned(),
            Expr::Reject { kind, code } => rejected(family, *kind, *code),
            Expr::SetMeta { key: libc::NFT_META_MARK, from } => {
                format!("meta mark set {}", self.load(*from)?.text())
            }
            Expr::Update { set, key, data, timeout, renew } => {
                let operation = if *renew { "update" } else { "add" };
                let end = data.map_or(Register::COUNT, Register::index);
                let key = self.fields(*key, end)?;
                let timeout = match timeout {
                    0 => String::new(),
                    milliseconds => format!(" timeout {}", duration(*milliseconds)),
                };
                let data = match data {
                    None => String::new(),
                    Some(data) => format!(" : {}", self.fields(*data, Register::COUNT)?),
                };
                format!("{operation} @{set} {{ {key}{timeout}{data} }}")
            }
            Expr::Object { kind: NFT_OBJECT_CT_TIMEOUT, name } => {
                format!("ct timeout set \"{name}\"")
            }
            Expr::Counter => "counter".to_owned(),
            Expr::Match(extension) => format!("xt match \"{}\"", extension.name),
            Expr::Target(extension) => format!("xt target \"{}\"", extension.name),
            Expr::Bitwise { from, to, operation, .. } => {
                let mut operand = self.load(*from)?.clone();
                match operation {
                    Bitwise::Mask { mask, xor } if operand.bits.is_none() => {
                        operand.bits = Some((mask, xor));
                    }
                    _ => operand.plain = "(bitwise)".to_owned(),
                }
                operand.order = order;
                return self.put(*to, operand);
            }
            Expr::Hash { key, length, modulus, seed, to } => {
                let fields = self.fields(*key, key.index() + length.div_ceil(4) as usize)?;
                let text = format!("jhash {fields} mod {modulus} seed 0x{seed:08x}");
                return self.store(*to, order, expr, text);
            }
            Expr::Value { to, .. }
            | Expr::Payload { to, .. }
            | Expr::Meta { to, .. }
            | Expr::Ct { to, .. }
            | Expr::Fib { to, .. }
            | Expr::Number { to, .. } => {
                let text = loaded(family, expr);
                let text = text.unwrap_or_else(|| format!("({})", expr.name()));
                return self.store(*to, order, expr, text);
            }
            _ => return None,
        }))
    }

    fn store(
        &mut self,
        to: Register,
        order: usize,
        from: &'a Expr,
        plain: String,
    ) -> Option<Option<String>> {
        self.put(to, Operand { from, order, plain, bits: None })
    }

    /// Stores an operand, which overwrites all registers that it fills.
    fn put(&mut self, to: Register, operand: Operand<'a>) -> Option<Option<String>> {
        let slots = self.registers.get_mut(to.index()..)?;
        slots.iter_mut().take(operand.registers()).for_each(|slot| *slot = None);
        *slots.first_mut()? = Some(operand);
        Some(None)
    }

    /// Returns the operand of a register. A value of a map fills several registers.
    fn load(&self, register: Register) -> Option<&Operand<'a>> {
        let (before, rest) = self.registers.split_at_checked(register.index())?;
        let map = || before.iter().rev().flatten().next().filter(|it| it.is_of_map());
        rest.first()?.as_ref().or_else(map)
    }

    /// Writes the fields of a key or value before a register. A field is behind the one before it,
    /// and was loaded after it: what is left in the registers from earlier is no part of the key.
    fn fields(&self, first: Register, end: usize) -> Option<String> {
        let mut last = self.load(first)?;
        let mut text = last.text();
        let mut next = first.index() + last.registers();
        while next < end
            && let Some(field) =
                self.registers.get(next)?.as_ref().filter(|it| it.order > last.order)
        {
            text = format!("{text} . {}", field.text());
            next += field.registers();
            last = field;
        }
        Some(text)
    }
}

impl Operand<'_> {
    fn is_of_map(&self) -> bool {
        matches!(self.from, Expr::Lookup { .. })
    }

    /// Returns the number of registers that the value fills. The length of a map's values is unknown
    /// here.
    fn registers(&self) -> usize {
        let bytes = match self.from {
            Expr::Lookup { .. } => return Register::COUNT,
            Expr::Payload { length, .. } => *length as usize,
            Expr::Value { bytes, .. } => bytes.len(),
            Expr::Meta { key: libc::NFT_META_IIFNAME | libc::NFT_META_OIFNAME, .. } => {
                libc::IFNAMSIZ
            }
            Expr::Ct { key: libc::NFT_CT_SRC_IP6 | libc::NFT_CT_DST_IP6, .. } => 16,
            _ => 4,
        };
        bytes.div_ceil(4).max(1)
    }

    fn text(&self) -> String {
        let Operand { plain, bits, .. } = self;
        let Some((mask, xor)) = bits else { return plain.clone() };
        if xor.iter().all(|byte| *byte == 0) {
            format!("{plain} & {}", number(mask))
        } else if xor.iter().map(|byte| !byte).eq(mask.iter().copied()) {
            format!("{plain} | {}", number(xor))
        } else {
            format!("({plain} & {}) ^ {}", number(mask), number(xor))
        }
    }
}

/// Writes what an expression loads.
fn loaded(family: Family, expr: &Expr) -> Option<String> {
    let bits = |bytes: u32| u64::from(bytes) * 8;
    Some(match expr {
        Expr::Value { bytes, .. } => hexadecimal(bytes),
        Expr::Payload { base: libc::NFT_PAYLOAD_NETWORK_HEADER, offset, length, .. } => {
            let name = match (family, *offset, *length) {
                (Family::Ip, 12, 1..=4) => "ip saddr",
                (Family::Ip, 16, 1..=4) => "ip daddr",
                (Family::Ip, 9, 1) => "ip protocol",
                (Family::Ip6, 8, 1..=16) => "ip6 saddr",
                (Family::Ip6, 24, 1..=16) => "ip6 daddr",
                (Family::Ip6, 6, 1) => "ip6 nexthdr",
                _ => return Some(format!("@nh,{},{}", bits(*offset), bits(*length))),
            };
            name.to_owned()
        }
        Expr::Payload { base: libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset, length, .. } => {
            match (offset, length) {
                (0, 2) => "th sport".to_owned(),
                (2, 2) => "th dport".to_owned(),
                _ => format!("@th,{},{}", bits(*offset), bits(*length)),
            }
        }
        Expr::Meta { key, .. } => {
            let name = match *key {
                libc::NFT_META_L4PROTO => "meta l4proto",
                libc::NFT_META_NFPROTO => "meta nfproto",
                libc::NFT_META_MARK => "meta mark",
                libc::NFT_META_IIFNAME => "iifname",
                libc::NFT_META_OIFNAME => "oifname",
                _ => return None,
            };
            name.to_owned()
        }
        Expr::Ct { key, direction, .. } => connection(*key, *direction),
        Expr::Fib { result: FIB_ADDRESS_TYPE, flags, .. } => match *flags {
            FIB_SOURCE => "fib saddr type".to_owned(),
            FIB_DESTINATION => "fib daddr type".to_owned(),
            _ => return None,
        },
        Expr::Number { modulus, random, .. } => {
            let how = if *random { "random" } else { "inc" };
            format!("numgen {how} mod {modulus}")
        }
        _ => return None,
    })
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

fn rejected(family: Family, kind: i32, code: u8) -> String {
    match kind {
        libc::NFT_REJECT_ICMP_UNREACH if code == port_unreachable(family) => "reject".to_owned(),
        libc::NFT_REJECT_ICMP_UNREACH => format!("reject with icmp {code}"),
        libc::NFT_REJECT_TCP_RST => "reject with tcp reset".to_owned(),
        _ => format!("reject with icmpx {code}"),
    }
}

fn translated(
    kind: &str,
    family: Family,
    address: Option<&Operand<'_>>,
    port: Option<&Operand<'_>>,
) -> String {
    let constant = |operand: Option<&Operand<'_>>| match operand?.from {
        Expr::Value { bytes, .. } => Some(bytes.clone()),
        _ => None,
    };
    let constants = (constant(address).and_then(|it| ip(&it)), constant(port));
    match (constants, address) {
        ((Some(to), Some(port)), _) if port.len() >= 2 => {
            format!("{kind} to {}", SocketAddr::new(to, u16::from_be_bytes([port[0], port[1]])))
        }
        ((Some(to), None), _) => format!("{kind} to {to}"),
        (_, Some(value)) if value.is_of_map() && port.is_some() => {
            format!("{kind} {family} addr . port to {}", value.text())
        }
        (_, Some(value)) => format!("{kind} to {}", value.text()),
        (_, None) => kind.to_owned(),
    }
}

fn connection(key: i32, direction: Option<u8>) -> String {
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
    let name = match key {
        libc::NFT_CT_SRC_IP => "ip saddr",
        libc::NFT_CT_DST_IP => "ip daddr",
        libc::NFT_CT_SRC_IP6 => "ip6 saddr",
        libc::NFT_CT_DST_IP6 => "ip6 daddr",
        _ => NAMES.get(key as usize).copied().unwrap_or("(key)"),
    };
    match direction {
        Some(0) => format!("ct original {name}"),
        Some(_) => format!("ct reply {name}"),
        None => format!("ct {name}"),
    }
}

fn compared(family: Family, operand: &Operand<'_>, comparison: Comparison, bytes: &[u8]) -> String {
    let plain = &operand.plain;
    match (operand.from, operand.bits, comparison, bytes) {
        (
            Expr::Payload {
                base: libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset: 13, length: 1, ..
            },
            Some(([mask], _)),
            Comparison::Equal,
            [value],
        ) => return format!("tcp flags & ({}) == {}", tcp_flags(*mask), tcp_flags(*value)),
        // `ct state new` is a bit that is not zero.
        (
            Expr::Ct { key, direction: None, .. },
            Some((mask, _)),
            Comparison::NotEqual,
            [0, 0, 0, 0],
        ) => {
            if let (Some(names), Some(mask)) = (bit_names(*key), mask.first_chunk()) {
                let mask = u32::from_ne_bytes(*mask);
                let names = names.iter().filter(|(bit, _)| mask & bit != 0);
                let names: Vec<&str> = names.map(|(_, name)| *name).collect();
                return format!("{plain} {}", names.join(","));
            }
        }
        _ => {}
    }
    let (left, value) = match address(family, operand, bytes) {
        Some(address) => (plain.clone(), address),
        None => (operand.text(), constant(operand, bytes)),
    };
    let comparison = match comparison {
        // nft leaves out `==` but for bits.
        Comparison::Equal if operand.bits.is_some() && left.contains('&') => "== ",
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
fn address(family: Family, operand: &Operand<'_>, bytes: &[u8]) -> Option<String> {
    let Expr::Payload { base: libc::NFT_PAYLOAD_NETWORK_HEADER, offset, length, .. } = operand.from
    else {
        return None;
    };
    let (places, size) = match family {
        Family::Ip => ([12, 16], 4),
        Family::Ip6 => ([8, 24], 16),
    };
    if !places.contains(offset) || *length as usize > size {
        return None;
    }
    let bits: usize = match operand.bits {
        None => bytes.len() * 8,
        Some((mask, xor)) if xor.iter().all(|byte| *byte == 0) => {
            mask.iter().map(|byte| byte.leading_ones() as usize).sum()
        }
        Some(_) => return None,
    };
    let mut whole = bytes.to_vec();
    whole.resize(size, 0);
    let address = ip(&whole)?;
    Some(if bits == size * 8 { address.to_string() } else { format!("{address}/{bits}") })
}

/// Writes a constant with which the operand is compared.
fn constant(operand: &Operand<'_>, bytes: &[u8]) -> String {
    match (operand.from, bytes) {
        _ if operand.bits.is_some() => number(bytes),
        (
            Expr::Meta { key: libc::NFT_META_L4PROTO, .. }
            | Expr::Payload { base: libc::NFT_PAYLOAD_NETWORK_HEADER, .. },
            [number],
        ) => match i32::from(*number) {
            libc::IPPROTO_TCP => "tcp".to_owned(),
            libc::IPPROTO_UDP => "udp".to_owned(),
            libc::IPPROTO_SCTP => "sctp".to_owned(),
            libc::IPPROTO_ICMP => "icmp".to_owned(),
            libc::IPPROTO_ICMPV6 => "ipv6-icmp".to_owned(),
            other => other.to_string(),
        },
        // `NFPROTO_IPV4`.
        // `NFPROTO_IPV4` and `NFPROTO_IPV6`.
        (Expr::Meta { key: libc::NFT_META_NFPROTO, .. }, [2]) => "ipv4".to_owned(),
        (Expr::Meta { key: libc::NFT_META_NFPROTO, .. }, [10]) => "ipv6".to_owned(),
        (Expr::Payload { base: libc::NFT_PAYLOAD_TRANSPORT_HEADER, .. }, [high, low]) => {
            u16::from_be_bytes([*high, *low]).to_string()
        }
        (Expr::Meta { key: libc::NFT_META_IIFNAME | libc::NFT_META_OIFNAME, .. }, name) => {
            let end = name.iter().position(|byte| *byte == 0);
            let any = if end.is_none() { "*" } else { "" };
            let name = String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]);
            format!("\"{name}{any}\"")
        }
        (Expr::Ct { key: libc::NFT_CT_DIRECTION, .. }, [0]) => "original".to_owned(),
        (Expr::Ct { key: libc::NFT_CT_DIRECTION, .. }, [1]) => "reply".to_owned(),
        (Expr::Fib { .. }, bytes) => {
            let kind = bytes.first_chunk().map(|kind| u32::from_ne_bytes(*kind));
            match kind.and_then(|kind| u8::try_from(kind).ok()) {
                Some(libc::RTN_UNICAST) => "unicast".to_owned(),
                Some(libc::RTN_LOCAL) => "local".to_owned(),
                Some(libc::RTN_BROADCAST) => "broadcast".to_owned(),
                Some(libc::RTN_MULTICAST) => "multicast".to_owned(),
                _ => hexadecimal(bytes),
            }
        }
        (Expr::Meta { key: libc::NFT_META_MARK, .. } | Expr::Ct { .. }, bytes) => number(bytes),
        (_, bytes) => hexadecimal(bytes),
    }
}

/// Returns the names of the bits of `ct state` and `ct status`.
fn bit_names(key: i32) -> Option<&'static [(u32, &'static str)]> {
    match key {
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
