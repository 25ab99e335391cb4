//! Translates the plan's rules into expressions of nf_tables.

use std::net::IpAddr;

use ipnet::IpNet;
use nfnetlink::nft::{BaseChain, ChainKind, Expr, Hook, Register};
use shunt_core::model::{Balancing, Family};
use shunt_core::plan::{BaseHook, Field, GONE_ENDPOINTS, HASH_SEED, Is, Rule, Set, Statement};

/// The first register, into which every statement loads its operand.
const FIRST: Register = Register(0);
/// `IPS_DST_NAT` of `nf_conntrack_common.h`.
const IPS_DST_NAT: u32 = 1 << 5;
/// `NF_CT_STATE_INVALID_BIT`.
const CT_INVALID: u32 = 1 << 0;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
const CT_ESTABLISHED: u32 = 1 << 1;
/// `IP_CT_DIR_ORIGINAL`.
const CT_ORIGINAL: u8 = 0;

/// Returns the type, hook and priority of a base chain.
pub(super) fn base_chain((hook, priority): (BaseHook, i32)) -> BaseChain {
    BaseChain {
        kind: match hook {
            BaseHook::FilterPrerouting | BaseHook::FilterForward | BaseHook::FilterOutput => {
                ChainKind::Filter
            }
            _ => ChainKind::Nat,
        },
        hook: match hook {
            BaseHook::Prerouting | BaseHook::FilterPrerouting => Hook::Prerouting,
            BaseHook::Input => Hook::Input,
            BaseHook::FilterForward => Hook::Forward,
            BaseHook::Output | BaseHook::FilterOutput => Hook::Output,
            BaseHook::Postrouting => Hook::Postrouting,
        },
        priority,
    }
}

/// Returns the expressions of a rule.
pub(super) fn expressions(family: Family, rule: &Rule) -> Vec<Expr> {
    let mut exprs = Vec::new();
    for statement in &rule.statements {
        translate(family, statement, &mut exprs);
    }
    exprs
}

fn translate(family: Family, statement: &Statement, exprs: &mut Vec<Expr>) {
    let v6 = family == Family::V6;
    match statement {
        Statement::Source(net, is) => in_prefix(family, Field::Source, *net, *is, exprs),
        Statement::Destination(net, is) => in_prefix(family, Field::Destination, *net, *is, exprs),
        Statement::Interface(name, is) => {
            // The register holds the name padded to IFNAMSIZ with zeros.
            let mut name = name.as_bytes().to_vec();
            name.resize(libc::IFNAMSIZ, 0);
            exprs.push(Expr::InputInterfaceName(FIRST));
            exprs.push(compare(*is, name));
        }
        Statement::InterfacePrefix(name, is) => {
            exprs.push(Expr::InputInterfaceName(FIRST));
            exprs.push(compare(*is, name.as_bytes().to_vec()));
        }
        Statement::SourceIsLocal => is_local(true, Is::So, exprs),
        Statement::DestinationIsLocal(is) => is_local(false, *is, exprs),
        Statement::Translated => {
            exprs.push(Expr::CtStatus(FIRST));
            exprs.extend(any_bit(IPS_DST_NAT));
        }
        Statement::EstablishedClient => {
            exprs.push(Expr::CtState(FIRST));
            exprs.extend(any_bit(CT_ESTABLISHED));
            exprs.push(Expr::CtDirection(FIRST));
            exprs.push(compare(Is::So, vec![CT_ORIGINAL]));
        }
        Statement::ToGoneEndpoint => {
            let port = Register(FIRST.0 + field_registers(family, Field::Destination));
            exprs.push(Expr::CtReplySource { v6, to: FIRST });
            exprs.push(Expr::CtReplySourcePort(port));
            exprs.push(Expr::InSet { set: GONE_ENDPOINTS.to_owned(), key: FIRST, negate: false });
        }
        Statement::Protocol(protocol) => {
            exprs.push(Expr::L4Proto(FIRST));
            exprs.push(compare(Is::So, vec![protocol.number()]));
        }
        Statement::Invalid => {
            exprs.push(Expr::CtState(FIRST));
            exprs.extend(any_bit(CT_INVALID));
        }
        Statement::TcpFlags(of, flags) => {
            // Byte 13 of the header.
            exprs.push(Expr::TransportHeader { offset: 13, length: 1, to: FIRST });
            exprs.push(Expr::Bitwise { register: FIRST, mask: vec![of.0], xor: vec![0] });
            exprs.push(compare(Is::So, vec![flags.0]));
        }
        Statement::SetTimeouts(timeouts) => exprs.push(Expr::SetTimeouts(timeouts.name())),
        Statement::DispatchUntranslated(set) => {
            load_key(family, *set, Load::Untranslated, exprs);
            exprs.push(Expr::MapVerdict { map: set.name().to_owned(), key: FIRST });
        }
        Statement::AffinityLookup => {
            load_key(family, Set::Affinity, Load::Packet, exprs);
            translate_to(family, Set::Affinity, exprs);
        }
        Statement::AffinityUpdate(seconds) => {
            let data = load_key(family, Set::Affinity, Load::Untranslated, exprs);
            let port = load_field(family, Field::Destination, data, Load::Packet, exprs);
            load_field(family, Field::Port, port, Load::Packet, exprs);
            exprs.push(Expr::UpdateMap {
                map: Set::Affinity.name().to_owned(),
                key: FIRST,
                data,
                timeout: u64::from(*seconds) * 1_000,
            });
        }
        Statement::InSet(set, is) => {
            load_key(family, *set, Load::Packet, exprs);
            let negate = *is == Is::Not;
            exprs.push(Expr::InSet { set: set.name().to_owned(), key: FIRST, negate });
        }
        Statement::Dispatch(set) => {
            load_key(family, *set, Load::Packet, exprs);
            exprs.push(Expr::MapVerdict { map: set.name().to_owned(), key: FIRST });
        }
        Statement::Balance(set, balancing, count) => {
            load_key(family, *set, Load::Chosen(*balancing, *count), exprs);
            translate_to(family, *set, exprs);
        }
        Statement::HasMark(bits) => {
            exprs.push(Expr::Mark(FIRST));
            exprs.extend(any_bit(*bits));
        }
        Statement::SetMark(bits) => change_mark(!bits, *bits, exprs),
        Statement::ClearMark(bits) => change_mark(!bits, 0, exprs),
        Statement::Jump(chain) => exprs.push(Expr::Jump(chain.to_string())),
        Statement::Goto(chain) => exprs.push(Expr::Goto(chain.to_string())),
        Statement::Masquerade => exprs.push(Expr::Masquerade),
        Statement::Reject => exprs.push(Expr::Reject { v6 }),
        Statement::Reset => exprs.push(Expr::RejectWithReset),
        Statement::Drop => exprs.push(Expr::Drop),
        Statement::Return => exprs.push(Expr::Return),
    }
}

fn change_mark(mask: u32, xor: u32, exprs: &mut Vec<Expr>) {
    exprs.push(Expr::Mark(FIRST));
    exprs.push(Expr::Bitwise {
        register: FIRST,
        mask: mask.to_ne_bytes().into(),
        xor: xor.to_ne_bytes().into(),
    });
    exprs.push(Expr::SetMark(FIRST));
}

fn compare(is: Is, with: Vec<u8>) -> Expr {
    Expr::Compare { register: FIRST, negate: is == Is::Not, with }
}

fn is_local(source: bool, is: Is, exprs: &mut Vec<Expr>) {
    exprs.push(Expr::FibType { source, to: FIRST });
    exprs.push(compare(is, u32::from(libc::RTN_LOCAL).to_ne_bytes().into()));
}

fn any_bit(bits: u32) -> [Expr; 2] {
    [
        Expr::Bitwise {
            register: FIRST,
            mask: bits.to_ne_bytes().into(),
            xor: 0_u32.to_ne_bytes().into(),
        },
        Expr::Compare { register: FIRST, negate: true, with: 0_u32.to_ne_bytes().into() },
    ]
}

/// Matches an address in a prefix, or outside. Like nft, compares whole bytes where possible, so
/// that nft prints the prefix again.
fn in_prefix(family: Family, field: Field, net: IpNet, is: Is, exprs: &mut Vec<Expr>) {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let (address, mask) = (octets(net.network()), octets(net.netmask()));
    let whole_bytes = usize::from(net.prefix_len()) / 8;
    let (offset, _) = header_field(family, field);
    let load = |length: usize| Expr::NetworkHeader { offset, length: length as u32, to: FIRST };
    if net.prefix_len() > 0 && net.prefix_len().is_multiple_of(8) {
        exprs.push(load(whole_bytes));
        exprs.push(compare(is, address[..whole_bytes].to_vec()));
    } else {
        exprs.push(load(address.len()));
        exprs.push(Expr::Bitwise { register: FIRST, xor: vec![0; mask.len()], mask });
        exprs.push(compare(is, address));
    }
}

/// Returns the offset and length of an address in the network header (`struct iphdr`, `struct
/// ipv6hdr`).
fn header_field(family: Family, field: Field) -> (u32, u32) {
    match (family, field) {
        (Family::V4, Field::Source) => (12, 4),
        (Family::V4, _) => (16, 4),
        (Family::V6, Field::Source) => (8, 16),
        (Family::V6, _) => (24, 16),
    }
}

/// Returns the number of four-byte registers of a field.
fn field_registers(family: Family, field: Field) -> u8 {
    match (field, family) {
        (Field::Source | Field::Destination, Family::V6) => 4,
        _ => 1,
    }
}

/// The origin of a key's fields.
#[derive(Clone, Copy)]
enum Load {
    /// The current packet.
    Packet,
    /// The packet before the translation of its destination.
    Untranslated,
    /// The packet, with an index below the number, chosen in this way.
    Chosen(Balancing, u32),
}

/// Loads the key of a set into consecutive registers, and returns the next free one.
fn load_key(family: Family, set: Set, load: Load, exprs: &mut Vec<Expr>) -> Register {
    set.key().iter().fold(FIRST, |to, field| load_field(family, *field, to, load, exprs))
}

fn load_field(
    family: Family,
    field: Field,
    to: Register,
    load: Load,
    exprs: &mut Vec<Expr>,
) -> Register {
    let expr = match (field, load) {
        (Field::Destination, Load::Untranslated) => {
            Expr::CtOriginalDestination { v6: family == Family::V6, to }
        }
        (Field::Port, Load::Untranslated) => Expr::CtOriginalPort(to),
        (Field::Source | Field::Destination, _) => {
            let (offset, length) = header_field(family, field);
            Expr::NetworkHeader { offset, length, to }
        }
        (Field::Protocol, _) => Expr::L4Proto(to),
        // Bytes 2 and 3 of the headers of TCP, UDP and SCTP.
        (Field::Port, _) => Expr::TransportHeader { offset: 2, length: 2, to },
        (Field::Index, Load::Chosen(Balancing::SourceHash, modulus)) => {
            hash(family, false, modulus, to, exprs)
        }
        (Field::Index, Load::Chosen(Balancing::SourceAndPortHash, modulus)) => {
            hash(family, true, modulus, to, exprs)
        }
        (Field::Index, Load::Chosen(Balancing::Random, modulus)) => Expr::Random { modulus, to },
        (Field::Index, Load::Packet | Load::Untranslated) => Expr::Random { modulus: 1, to },
    };
    exprs.push(expr);
    Register(to.0 + field_registers(family, field))
}

/// Loads the source behind the key, and returns its hash as the last field of the key.
fn hash(family: Family, port: bool, modulus: u32, to: Register, exprs: &mut Vec<Expr>) -> Expr {
    let key = Register(to.0 + 1);
    let mut next = load_field(family, Field::Source, key, Load::Packet, exprs);
    if port {
        // Bytes 0 and 1 of the headers of TCP, UDP and SCTP.
        exprs.push(Expr::TransportHeader { offset: 0, length: 2, to: next });
        next = Register(next.0 + 1);
    }
    // nft pads a field of a concatenation to a register.
    let length = u32::from(next.0 - key.0) * 4;
    Expr::Hash { key, length, modulus, seed: HASH_SEED, to }
}

/// Translates the destination to the map's value for the loaded key.
fn translate_to(family: Family, map: Set, exprs: &mut Vec<Expr>) {
    exprs.push(Expr::MapValue { map: map.name().to_owned(), key: FIRST, to: FIRST });
    let port = Register(field_registers(family, Field::Destination));
    exprs.push(Expr::DestinationNat { v6: family == Family::V6, address: FIRST, port });
}
