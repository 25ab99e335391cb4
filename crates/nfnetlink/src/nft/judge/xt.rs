//! Matches and targets of iptables, which iptables-nft puts into rules as structures of xtables.
//!
//! Source: `include/uapi/linux/netfilter/xt_*.h`. Numbers are in host order unless they are
//! addresses. A structure of an unknown revision is not decoded.

use std::net::IpAddr;

use super::matches::{Step, untrack};
use super::packet::{State, Tracking, View, addresses, has_ports, octets};
use super::registers::Bits;
use super::truth::Truth;
use crate::nft::Verdict;
use crate::nft::uapi::{
    IPS_DST_NAT, IPS_SRC_NAT, RTN_LOCAL, RTN_UNICAST, STATE_INVALID, STATE_NEW, STATE_UNTRACKED,
};

/// Targets that neither end the way of a packet nor change what rules match.
const NEUTRAL_TARGETS: [&str; 24] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNSECMARK",
    "DSCP",
    "ECN",
    "HL",
    "IDLETIMER",
    "LED",
    "LOG",
    "NFLOG",
    "RATEEST",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TRACE",
    "TTL",
    "ULOG",
    "dscp",
    "nflog",
    "log",
];

/// The flags of conntrack (`XT_CONNTRACK_*`).
const CONNTRACK_STATE: u32 = 1 << 0;
const CONNTRACK_PROTO: u32 = 1 << 1;
const CONNTRACK_ORIGSRC: u32 = 1 << 2;
const CONNTRACK_ORIGDST: u32 = 1 << 3;
const CONNTRACK_REPLSRC: u32 = 1 << 4;
const CONNTRACK_REPLDST: u32 = 1 << 5;
const CONNTRACK_STATUS: u32 = 1 << 6;
const CONNTRACK_EXPIRES: u32 = 1 << 7;
const CONNTRACK_ORIGSRC_PORT: u32 = 1 << 8;
const CONNTRACK_ORIGDST_PORT: u32 = 1 << 9;
const CONNTRACK_REPLSRC_PORT: u32 = 1 << 10;
const CONNTRACK_REPLDST_PORT: u32 = 1 << 11;
const CONNTRACK_DIRECTION: u32 = 1 << 12;
const CONNTRACK_STATE_SNAT: u32 = 1 << 6;
const CONNTRACK_STATE_DNAT: u32 = 1 << 7;
const CONNTRACK_STATE_UNTRACKED: u32 = 1 << 8;

/// `XT_CT_NOTRACK`.
const CT_NOTRACK: u32 = 1;

/// Returns a `u16` in host order.
fn short(info: &[u8], offset: usize) -> Option<u32> {
    let bytes = info.get(offset..offset.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?).into())
}

/// Returns a `u32` in host order.
fn long(info: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(info.get(offset..offset.checked_add(4)?)?.try_into().ok()?))
}

fn byte(info: &[u8], offset: usize) -> Option<u32> {
    info.get(offset).copied().map(u32::from)
}

/// Evaluates a match.
pub(super) fn matches(
    name: &str,
    revision: u32,
    info: &[u8],
    view: &View<'_>,
    state: &State,
) -> Truth {
    let truth = match (name, revision) {
        ("comment", _) => Some(Truth::Yes),
        ("conntrack", 1..=3) => conntrack(revision, info, view, state),
        ("state", 0) => long(info, 0).map(|states| has_state(states, STATE_UNTRACKED, state)),
        ("tcp", 0) => tcp(info, view, state),
        ("udp", 0) => udp(info, view, state),
        ("multiport", 1) => multiport(info, view, state),
        ("mark", 1) => marked(info, &state.mark),
        ("connmark", 1) => match state.tracking {
            Tracking::Tracked => marked(info, &state.connection_mark),
            Tracking::Before | Tracking::Untracked => Some(Truth::No),
            Tracking::Unknown => None,
        },
        ("addrtype", 0 | 1) => address_type(revision, info, view),
        ("iprange", 1) => address_range(info, view, state),
        _ => None,
    };
    truth.unwrap_or(Truth::Unknown)
}

/// Evaluates a target.
pub(super) fn target(name: &str, revision: u32, info: &[u8], state: &mut State) -> Step {
    match name {
        name if NEUTRAL_TARGETS.contains(&name) => Step::NEXT,
        "ACCEPT" => Step::Verdict(Verdict::Accept),
        "RETURN" => Step::Verdict(Verdict::Return),
        "DROP" | "REJECT" => Step::Drop(name.to_owned()),
        "DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" => Step::Translate(name.to_owned()),
        "MARK" => {
            let new = long(info, 0).zip(long(info, 4)).filter(|_| revision == 2);
            state.mark = match new {
                Some((mark, mask)) => {
                    state.mark.masked(&(!mask).to_ne_bytes(), &mark.to_ne_bytes())
                }
                None => Bits::unknown(4),
            };
            Step::NEXT
        }
        "CONNMARK" => {
            connection_mark(revision, info, state);
            Step::NEXT
        }
        "HMARK" => {
            state.mark = Bits::unknown(4);
            Step::NEXT
        }
        "NOTRACK" => untrack(state),
        "CT" => match short(info, 0) {
            Some(flags) if flags & CT_NOTRACK != 0 => untrack(state),
            Some(_) => {
                // The target attaches a template, which rules take for a connection.
                if state.tracking == Tracking::Before {
                    state.tracking = Tracking::Unknown;
                }
                Step::NEXT
            }
            None => unknown_target(name),
        },
        name => unknown_target(name),
    }
}

fn unknown_target(name: &str) -> Step {
    Step::Anything { what: name.to_owned(), why: "the effect of this target is not known" }
}

/// Changes the marks as CONNMARK does. The connection mark is unknown afterwards.
fn connection_mark(revision: u32, info: &[u8], state: &mut State) {
    const RESTORE: u32 = 2;
    let mode = match revision {
        1 => byte(info, 12),
        2 => byte(info, 14),
        _ => None,
    };
    match mode {
        Some(RESTORE) if state.tracking == Tracking::Before => {}
        Some(RESTORE) => {
            // Revision 2 may shift the bits.
            let is_shifted = revision == 2 && byte(info, 13) != Some(0);
            let changed = long(info, 4).zip(long(info, 8)).filter(|_| !is_shifted);
            let changed = changed.map_or(u32::MAX, |(of_mark, of_packet)| of_mark | of_packet);
            let (value, known) = state.mark.parts();
            let kept = (!changed).to_ne_bytes();
            let known: Vec<u8> = known.iter().zip(kept).map(|(a, b)| a & b).collect();
            state.mark = Bits::partial(value, &known);
        }
        Some(0 | 1) => state.connection_mark = Bits::unknown(4),
        _ => {
            state.mark = Bits::unknown(4);
            state.connection_mark = Bits::unknown(4);
        }
    }
}

/// Returns whether the packet has one of these states, without those of NAT.
fn has_state(states: u32, untracked: u32, state: &State) -> Truth {
    match state.tracking {
        Tracking::Tracked => (states & STATE_NEW != 0).into(),
        Tracking::Before => (states & STATE_INVALID != 0).into(),
        Tracking::Untracked => (states & untracked != 0).into(),
        Tracking::Unknown => Truth::Unknown,
    }
}

/// Returns whether the connection has one of these status bits.
fn has_status(bits: u32, view: &View<'_>) -> Truth {
    !view.status().masked(&bits.to_ne_bytes(), &[]).equals(&[0; 4])
}

/// `struct xt_conntrack_mtinfo1`, 2 and 3.
fn conntrack(revision: u32, info: &[u8], view: &View<'_>, state: &State) -> Option<Truth> {
    let (flags, inverted) = (short(info, 146)?, short(info, 148)?);
    let (states, statuses) = match revision {
        1 => (byte(info, 150)?, byte(info, 151)?),
        _ => (short(info, 150)?, short(info, 152)?),
    };
    let checked = |flag: u32, truth: &mut dyn FnMut() -> Option<Truth>| {
        if flags & flag == 0 {
            return Some(Truth::Yes);
        }
        Some(truth()?.inverted(inverted & flag != 0))
    };
    let is_tracked = state.tracking == Tracking::Tracked;
    let mut result = checked(CONNTRACK_STATE, &mut || {
        let mut truth = has_state(states, CONNTRACK_STATE_UNTRACKED, state);
        if is_tracked && states & CONNTRACK_STATE_SNAT != 0 {
            truth = truth | has_status(IPS_SRC_NAT, view);
        }
        if is_tracked && states & CONNTRACK_STATE_DNAT != 0 {
            truth = truth | has_status(IPS_DST_NAT, view);
        }
        Some(truth)
    })?;
    match state.tracking {
        Tracking::Tracked => {}
        Tracking::Unknown => return None,
        Tracking::Before | Tracking::Untracked => {
            return Some(result & Truth::from(flags & CONNTRACK_STATE != 0));
        }
    }
    let packet = view.packet;
    let has_original_source = view.has_original_source();
    // The first packet has the original direction.
    result = result & checked(CONNTRACK_DIRECTION, &mut || Some(Truth::Yes))?;
    let address = |flag, offset: usize, address: Option<IpAddr>| {
        checked(flag, &mut || match address {
            Some(address) => masked_address(info, offset, address),
            None => Some(Truth::Unknown),
        })
    };
    let source = Some(packet.source);
    let original_source = source.filter(|_| has_original_source);
    result = result & address(CONNTRACK_ORIGSRC, 0, original_source)?;
    result = result & address(CONNTRACK_ORIGDST, 32, Some(packet.original_destination))?;
    result = result & address(CONNTRACK_REPLSRC, 64, Some(packet.destination))?;
    result = result & address(CONNTRACK_REPLDST, 96, source)?;
    result = result
        & checked(CONNTRACK_PROTO, &mut || {
            Some((short(info, 136)? == u32::from(packet.protocol)).into())
        })?;
    let port = |flag, offset: usize, port: Option<u16>| {
        checked(flag, &mut || {
            let Some(port) = port.map(u32::from) else { return Some(Truth::Unknown) };
            let from = short(info, offset)?;
            Some(if revision == 3 {
                (from..=short(info, offset + 16)?).contains(&port).into()
            } else {
                (u32::from(u16::from_be(from as u16)) == port).into()
            })
        })
    };
    result = result & port(CONNTRACK_ORIGSRC_PORT, 138, None)?;
    result = result & port(CONNTRACK_ORIGDST_PORT, 140, Some(packet.original_port))?;
    result = result & port(CONNTRACK_REPLSRC_PORT, 142, Some(packet.port))?;
    result = result & port(CONNTRACK_REPLDST_PORT, 144, None)?;
    result = result & checked(CONNTRACK_STATUS, &mut || Some(has_status(statuses, view)))?;
    result = result & checked(CONNTRACK_EXPIRES, &mut || Some(Truth::Unknown))?;
    Some(result)
}

/// Compares an address with one and its mask after it (`union nf_inet_addr`).
fn masked_address(info: &[u8], offset: usize, address: IpAddr) -> Option<Truth> {
    let address = octets(address);
    let wanted = info.get(offset..offset + address.len())?;
    let mask = info.get(offset + 16..offset + 16 + address.len())?;
    let mut bytes = address.iter().zip(wanted).zip(mask);
    Some(bytes.all(|((address, wanted), mask)| (address ^ wanted) & mask == 0).into())
}

/// Returns whether a port of the header is in a range of two numbers.
fn port_between(state: &State, at: usize, from: u32, to: u32) -> Truth {
    let bytes = |port: u32| (port as u16).to_be_bytes();
    state.transport.slice(at, 2).is_between(&bytes(from), &bytes(to))
}

/// Compares both ports with the ranges at the start of a structure.
fn ports(info: &[u8], inverted: u32, state: &State) -> Option<Truth> {
    let source = port_between(state, 0, short(info, 0)?, short(info, 2)?);
    let destination = port_between(state, 2, short(info, 4)?, short(info, 6)?);
    Some(source.inverted(inverted & 1 != 0) & destination.inverted(inverted & 2 != 0))
}

fn is_protocol(view: &View<'_>, protocol: i32) -> Option<()> {
    (i32::from(view.packet.protocol) == protocol).then_some(())
}

/// `struct xt_tcp`.
fn tcp(info: &[u8], view: &View<'_>, state: &State) -> Option<Truth> {
    is_protocol(view, libc::IPPROTO_TCP)?;
    let inverted = byte(info, 11)?;
    let (mask, wanted) = (*info.get(9)?, *info.get(10)?);
    let flags = state.transport.slice(13, 1).masked(&[mask], &[]).equals(&[wanted]);
    let option = match byte(info, 8)? {
        0 => Truth::Yes,
        _ => Truth::Unknown,
    };
    Some(ports(info, inverted, state)? & flags.inverted(inverted & 4 != 0) & option)
}

/// `struct xt_udp`.
fn udp(info: &[u8], view: &View<'_>, state: &State) -> Option<Truth> {
    is_protocol(view, libc::IPPROTO_UDP)?;
    ports(info, byte(info, 8)?, state)
}

/// `struct xt_multiport_v1`.
fn multiport(info: &[u8], view: &View<'_>, state: &State) -> Option<Truth> {
    if !has_ports(view.packet.protocol) {
        return None;
    }
    let which = byte(info, 0)?;
    let count = byte(info, 1)? as usize;
    let mut result = Truth::No;
    let mut index = 0;
    while index < count.min(15) {
        let from = short(info, 2 + 2 * index)?;
        let is_range = byte(info, 32 + index)? != 0;
        index += usize::from(is_range);
        let to = short(info, 2 + 2 * index)?;
        index += 1;
        let (source, destination) =
            (port_between(state, 0, from, to), port_between(state, 2, from, to));
        result = result
            | match which {
                0 => source,
                1 => destination,
                2 => source | destination,
                _ => return None,
            };
    }
    Some(result.inverted(byte(info, 47)? != 0))
}

/// `struct xt_mark_mtinfo1` and `struct xt_connmark_mtinfo1`.
fn marked(info: &[u8], mark: &Bits) -> Option<Truth> {
    let (wanted, mask, inverted) = (long(info, 0)?, long(info, 4)?, byte(info, 8)? != 0);
    Some(mark.masked(&mask.to_ne_bytes(), &[]).equals(&wanted.to_ne_bytes()).inverted(inverted))
}

/// `struct xt_addrtype_info` and `struct xt_addrtype_info_v1`.
fn address_type(revision: u32, info: &[u8], view: &View<'_>) -> Option<Truth> {
    const INVERT_SOURCE: u32 = 1;
    const INVERT_DESTINATION: u32 = 2;
    let (source, destination) = (short(info, 0)?, short(info, 2)?);
    let (inverts_source, inverts_destination, is_limited) = match revision {
        0 => (long(info, 4)? != 0, long(info, 8)? != 0, false),
        _ => {
            let flags = long(info, 4)?;
            // The others limit the search to the routes of an interface.
            let known = INVERT_SOURCE | INVERT_DESTINATION;
            (flags & INVERT_SOURCE != 0, flags & INVERT_DESTINATION != 0, flags & !known != 0)
        }
    };
    let mut result = Truth::Yes;
    if source != 0 {
        result = result & Truth::Unknown.inverted(inverts_source);
    }
    if destination != 0 {
        let kind = match view.is_local() {
            _ if is_limited => None,
            Truth::Yes => Some(RTN_LOCAL),
            Truth::No => Some(RTN_UNICAST),
            Truth::Unknown => None,
        };
        let truth = kind.map_or(Truth::Unknown, |kind| (destination & 1 << kind != 0).into());
        result = result & truth.inverted(inverts_destination);
    }
    Some(result)
}

/// `struct xt_iprange_mtinfo`.
fn address_range(info: &[u8], view: &View<'_>, state: &State) -> Option<Truth> {
    let flags = byte(info, 64)?;
    let (at, length) = addresses(view.packet.family());
    let half = length / 2;
    let mut result = Truth::Yes;
    for (is_asked, inverts, field, offset) in [(1, 1 << 4, at, 0), (2, 1 << 5, at + half, 32)] {
        if flags & is_asked != 0 {
            let from = info.get(offset..offset + half)?;
            let to = info.get(offset + 16..offset + 16 + half)?;
            let truth = state.network.slice(field, half).is_between(from, to);
            result = result & truth.inverted(flags & inverts != 0);
        }
    }
    Some(result)
}
