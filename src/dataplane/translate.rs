//! Translates the plan's rules into expressions of nf_tables.

use std::net::IpAddr;

use super::codec::table_family;
use ipnet::IpNet;
use nfnetlink::nft::{
    BaseChain, ChainType, Comparison, Expr, Hook, Register, Verdict, Wanted, rule_text as text_of,
};
use shunt_core::model::{Balancing, Family, Protocol};
use shunt_core::plan::{BaseHook, Field, GONE_ENDPOINTS, HASH_SEED, Is, Rule, Set, Statement};

/// The first register, into which every statement loads its operand.
const FIRST: Register = Register(0);
/// `IPS_DST_NAT` of `nf_conntrack_common.h`.
const IPS_DST_NAT: u32 = 1 << 5;
/// `NF_CT_STATE_INVALID_BIT`.
const CT_INVALID: u32 = 1 << 0;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
const CT_ESTABLISHED: u32 = 1 << 1;
/// Flags of TCP (RFC 9293).
const FIN: u8 = 1 << 0;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;
/// `IP_CT_DIR_ORIGINAL` and `IP_CT_DIR_REPLY`.
const CT_ORIGINAL: u8 = 0;
const CT_REPLY: u8 = 1;

/// Returns the type, hook and priority of a base chain.
pub(super) fn base_chain((hook, priority): (BaseHook, i32)) -> BaseChain {
    BaseChain {
        kind: match hook {
            BaseHook::FilterPrerouting | BaseHook::FilterForward | BaseHook::FilterOutput => {
                ChainType::Filter
            }
            _ => ChainType::Nat,
        },
        hook: match hook {
            BaseHook::Prerouting | BaseHook::FilterPrerouting => Hook::PreRouting,
            BaseHook::Input => Hook::In,
            BaseHook::FilterForward => Hook::Forward,
            BaseHook::Output | BaseHook::FilterOutput => Hook::Out,
            BaseHook::Postrouting => Hook::PostRouting,
        },
        priority,
    }
}

/// Writes a rule like nft, with its comment.
pub(crate) fn rule_text(family: Family, rule: &Rule) -> String {
    commented(family, &expressions(family, rule), rule.comment.as_deref())
}

/// Writes expressions like nft, with the comment of their rule.
pub(super) fn commented(family: Family, exprs: &[Expr], comment: Option<&str>) -> String {
    let mut text = text_of(table_family(family), exprs);
    text.extend(comment.map(|comment| format!(" comment \"{comment}\"")));
    text
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
    let ct = |key| Expr::Ct { key, direction: None, to: FIRST };
    let mark = libc::NFT_META_MARK;
    match statement {
        Statement::Source(net, is) => in_prefix(family, Field::Source, *net, *is, exprs),
        Statement::Destination(net, is) => in_prefix(family, Field::Destination, *net, *is, exprs),
        Statement::Interface(name, is) => {
            // The register holds the name padded to IFNAMSIZ with zeros.
            let mut name = name.as_bytes().to_vec();
            name.resize(libc::IFNAMSIZ, 0);
            exprs.push(Expr::Meta { key: libc::NFT_META_IIFNAME, to: FIRST });
            exprs.push(compare(*is, name));
        }
        Statement::InterfacePrefix(name, is) => {
            exprs.push(Expr::Meta { key: libc::NFT_META_IIFNAME, to: FIRST });
            exprs.push(compare(*is, name.as_bytes().to_vec()));
        }
        Statement::SourceIsLocal => is_local(true, Is::So, exprs),
        Statement::DestinationIsLocal(is) => is_local(false, *is, exprs),
        Statement::Translated => {
            exprs.push(ct(libc::NFT_CT_STATUS));
            exprs.extend(any_bit(IPS_DST_NAT));
        }
        Statement::ToGoneEndpoint => {
            exprs.extend(is_protocol(Protocol::Tcp));
            translate(family, &Statement::Translated, exprs);
            exprs.push(ct(libc::NFT_CT_STATE));
            exprs.extend(any_bit(CT_ESTABLISHED));
            exprs.push(ct(libc::NFT_CT_DIRECTION));
            exprs.push(compare(Is::So, vec![CT_ORIGINAL]));
            let port = Register(FIRST.0 + field_registers(family, Field::Destination));
            let reply = |key, to| Expr::Ct { key, direction: Some(CT_REPLY), to };
            exprs.push(reply(source_of_connection(family), FIRST));
            exprs.push(reply(libc::NFT_CT_PROTO_SRC, port));
            exprs.push(lookup(GONE_ENDPOINTS, Wanted::Member));
        }
        Statement::Protocol(protocol) => exprs.extend(is_protocol(*protocol)),
        Statement::LateAnswer => {
            // First what holds for hardly any packet: the node forwards all others, too.
            exprs.push(ct(libc::NFT_CT_STATE));
            exprs.extend(any_bit(CT_INVALID));
            tcp_flags(SYN | RST | ACK, SYN | ACK, exprs);
        }
        Statement::SetTimeouts(timeouts) => {
            tcp_flags(FIN | SYN | RST | ACK, SYN, exprs);
            exprs.push(Expr::timeouts(timeouts.name()));
        }
        Statement::DispatchUntranslated(set) => {
            load_key(family, *set, Load::Untranslated, exprs);
            exprs.push(lookup(set.name(), Wanted::Verdict));
        }
        Statement::AffinityLookup => {
            load_key(family, Set::Affinity, Load::Packet, exprs);
            translate_to(family, Set::Affinity, exprs);
        }
        Statement::AffinityUpdate(seconds) => {
            let data = load_key(family, Set::Affinity, Load::Untranslated, exprs);
            let port = load_field(family, Field::Destination, data, Load::Packet, exprs);
            load_field(family, Field::Port, port, Load::Packet, exprs);
            exprs.push(Expr::Update {
                set: Set::Affinity.name().to_owned(),
                key: FIRST,
                data: Some(data),
                timeout: u64::from(*seconds) * 1_000,
                renew: true,
            });
        }
        Statement::InSet(set, is) => {
            load_key(family, *set, Load::Packet, exprs);
            let wanted = if *is == Is::Not { Wanted::NoMember } else { Wanted::Member };
            exprs.push(lookup(set.name(), wanted));
        }
        Statement::Dispatch(set) => {
            load_key(family, *set, Load::Packet, exprs);
            exprs.push(lookup(set.name(), Wanted::Verdict));
        }
        Statement::Balance(pools, balancing, count) => {
            let set = pools.endpoints();
            load_key(family, set, Load::Chosen(*balancing, *count), exprs);
            translate_to(family, set, exprs);
        }
        Statement::HasMark(bits) => {
            exprs.push(Expr::Meta { key: mark, to: FIRST });
            exprs.extend(any_bit(*bits));
        }
        Statement::SetMark(bits) => change_mark(!bits, *bits, exprs),
        Statement::ClearMark(bits) => change_mark(!bits, 0, exprs),
        Statement::Jump(chain) => exprs.push(Expr::Verdict(Verdict::Jump(chain.to_string()))),
        Statement::Goto(chain) => exprs.push(Expr::Verdict(Verdict::Goto(chain.to_string()))),
        Statement::Masquerade => exprs.push(Expr::Masquerade { fully_random: true }),
        Statement::Reject => exprs.push(Expr::port_unreachable(table_family(family))),
        Statement::Reset => exprs.push(Expr::Reject { kind: libc::NFT_REJECT_TCP_RST, code: 0 }),
        Statement::Drop => exprs.push(Expr::Verdict(Verdict::Drop)),
        Statement::Return => exprs.push(Expr::Verdict(Verdict::Return)),
    }
}

fn is_protocol(protocol: Protocol) -> [Expr; 2] {
    [Expr::protocol(FIRST), compare(Is::So, vec![protocol.number()])]
}

/// Matches a TCP packet with these flags, of those in `of`.
fn tcp_flags(of: u8, flags: u8, exprs: &mut Vec<Expr>) {
    exprs.extend(is_protocol(Protocol::Tcp));
    // Byte 13 of the header.
    exprs.push(Expr::transport(13, 1, FIRST));
    exprs.push(Expr::mask(FIRST, [of], [0]));
    exprs.push(compare(Is::So, vec![flags]));
}

fn change_mark(mask: u32, xor: u32, exprs: &mut Vec<Expr>) {
    let key = libc::NFT_META_MARK;
    exprs.push(Expr::Meta { key, to: FIRST });
    exprs.push(Expr::mask(FIRST, mask.to_ne_bytes(), xor.to_ne_bytes()));
    exprs.push(Expr::SetMeta { key, from: FIRST });
}

fn lookup(set: &str, wanted: Wanted) -> Expr {
    Expr::Lookup { set: set.to_owned(), key: FIRST, wanted }
}

/// Returns the key of a connection's source address.
fn source_of_connection(family: Family) -> i32 {
    match family {
        Family::V4 => libc::NFT_CT_SRC_IP,
        Family::V6 => libc::NFT_CT_SRC_IP6,
    }
}

fn compare(is: Is, with: Vec<u8>) -> Expr {
    let comparison = if is == Is::Not { Comparison::NotEqual } else { Comparison::Equal };
    Expr::Compare { from: FIRST, comparison, with }
}

fn is_local(source: bool, is: Is, exprs: &mut Vec<Expr>) {
    exprs.push(Expr::address_type(source, FIRST));
    exprs.push(compare(is, u32::from(libc::RTN_LOCAL).to_ne_bytes().into()));
}

fn any_bit(bits: u32) -> [Expr; 2] {
    [Expr::mask(FIRST, bits.to_ne_bytes(), [0; 4]), compare(Is::Not, vec![0; 4])]
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
    let load = |length: usize| Expr::network(offset, length as u32, FIRST);
    if net.prefix_len() > 0 && net.prefix_len().is_multiple_of(8) {
        exprs.push(load(whole_bytes));
        exprs.push(compare(is, address[..whole_bytes].to_vec()));
    } else {
        exprs.push(load(address.len()));
        let xor = vec![0; mask.len()];
        exprs.push(Expr::mask(FIRST, mask, xor));
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
    let random = |modulus| Expr::Number { modulus, random: true, to };
    let original = |key| Expr::Ct { key, direction: Some(CT_ORIGINAL), to };
    let expr = match (field, load) {
        (Field::Destination, Load::Untranslated) => original(match family {
            Family::V4 => libc::NFT_CT_DST_IP,
            Family::V6 => libc::NFT_CT_DST_IP6,
        }),
        (Field::Port, Load::Untranslated) => original(libc::NFT_CT_PROTO_DST),
        (Field::Source | Field::Destination, _) => {
            let (offset, length) = header_field(family, field);
            Expr::network(offset, length, to)
        }
        (Field::Protocol, _) => Expr::protocol(to),
        // Bytes 2 and 3 of the headers of TCP, UDP and SCTP.
        (Field::Port, _) => Expr::transport(2, 2, to),
        (Field::Index, Load::Chosen(Balancing::SourceHash, modulus)) => {
            hash(family, false, modulus, to, exprs)
        }
        (Field::Index, Load::Chosen(Balancing::SourceAndPortHash, modulus)) => {
            hash(family, true, modulus, to, exprs)
        }
        (Field::Index, Load::Chosen(Balancing::Random, modulus)) => random(modulus),
        (Field::Index, Load::Packet | Load::Untranslated) => random(1),
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
        exprs.push(Expr::transport(0, 2, next));
        next = Register(next.0 + 1);
    }
    // nft pads a field of a concatenation to a register.
    let length = u32::from(next.0 - key.0) * 4;
    Expr::Hash { key, length, modulus, seed: HASH_SEED, to }
}

/// Translates the destination to the map's value for the loaded key.
fn translate_to(family: Family, map: Set, exprs: &mut Vec<Expr>) {
    exprs.push(lookup(map.name(), Wanted::Value(FIRST)));
    let port = Register(field_registers(family, Field::Destination));
    exprs.push(Expr::destination_nat(table_family(family), FIRST, port));
}
