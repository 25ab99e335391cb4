//! Matches and targets of iptables, which iptables-nft puts into rules as structures of xtables.
//!
//! Source: `include/uapi/linux/netfilter/xt_*.h`. Numbers are in host order unless they are
//! addresses. A structure of an unknown revision is not decoded.

use std::net::IpAddr;

use super::packet::{State, Tracking, View, has_ports, octets};
use super::registers::Bits;
use super::step::{Step, untrack};
use super::truth::Truth;
use crate::nft::Extension;
use crate::nft::Verdict;
use crate::nft::uapi::{IPS_DST_NAT, IPS_SRC_NAT, STATE_UNTRACKED};

/// Targets that neither end the way of a packet nor change what rules match.
const NEUTRAL_TARGETS: [&str; 20] = [
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
];

/// Flags among the states of conntrack (`XT_CONNTRACK_STATE_*`).
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
pub(super) fn matches(extension: &Extension, view: &View<'_>, state: &State) -> Truth {
    let info = &extension.info[..];
    let truth = match (extension.name.as_str(), extension.revision) {
        ("comment", _) => Some(Truth::Yes),
        ("conntrack", 3) => conntrack(info, view, state),
        ("tcp", 0) => tcp(info, view, state),
        ("udp", 0) => udp(info, view, state),
        ("multiport", 1) => multiport(info, view, state),
        ("mark", 1) => marked(info, &state.mark),
        ("addrtype", 1) => address_type(info, view),
        _ => None,
    };
    truth.unwrap_or(Truth::Unknown)
}

/// Evaluates a target.
pub(super) fn target(extension: &Extension, state: &mut State) -> Step {
    let Extension { name, revision, info } = extension;
    match name.as_str() {
        name if NEUTRAL_TARGETS.contains(&name) => Step::NEXT,
        "ACCEPT" => Step::Verdict(Verdict::Accept),
        "RETURN" => Step::Verdict(Verdict::Return),
        "DROP" | "REJECT" => Step::Drop(name.to_owned()),
        "DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" => Step::Translate(name.to_owned()),
        "MARK" => {
            let new = long(info, 0).zip(long(info, 4)).filter(|_| *revision == 2);
            state.mark = match new {
                Some((mark, mask)) => {
                    state.mark.masked(&(!mask).to_ne_bytes(), &mark.to_ne_bytes())
                }
                None => Bits::unknown(4),
            };
            Step::NEXT
        }
        "CONNMARK" => {
            connection_mark(*revision, info, state);
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

/// Changes the mark as CONNMARK does (`struct xt_connmark_tginfo2`). The connection mark is not known.
fn connection_mark(revision: u32, info: &[u8], state: &mut State) {
    const RESTORE: u32 = 2;
    match byte(info, 14).filter(|_| revision == 2) {
        Some(RESTORE) if state.tracking == Tracking::Before => {}
        Some(RESTORE) => {
            let is_shifted = byte(info, 13) != Some(0);
            let changed = long(info, 4).zip(long(info, 8)).filter(|_| !is_shifted);
            let changed = changed.map_or(u32::MAX, |(of_mark, of_packet)| of_mark | of_packet);
            let (value, known) = state.mark.number().unwrap_or_default();
            state.mark = Bits::partial(&value.to_ne_bytes(), &(known & !changed).to_ne_bytes());
        }
        Some(0 | 1) => {}
        _ => state.mark = Bits::unknown(4),
    }
}

/// `struct xt_conntrack_mtinfo3`.
fn conntrack(info: &[u8], view: &View<'_>, state: &State) -> Option<Truth> {
    let (flags, inverted) = (short(info, 146)?, short(info, 148)?);
    let (states, statuses) = (short(info, 150)?, short(info, 152)?);
    let untracked = if states & CONNTRACK_STATE_UNTRACKED != 0 { STATE_UNTRACKED } else { 0 };
    let plain = states & (CONNTRACK_STATE_SNAT - 1) | untracked;
    let is_tracked = state.tracking == Tracking::Tracked;
    let mut has_state = state.tracking.state_bits().has_any(plain);
    for (bit, status) in [(CONNTRACK_STATE_SNAT, IPS_SRC_NAT), (CONNTRACK_STATE_DNAT, IPS_DST_NAT)]
    {
        if is_tracked && states & bit != 0 {
            has_state = has_state | view.status().has_any(status);
        }
    }
    let address = |offset: usize, address: Option<IpAddr>| {
        address.map_or(Some(Truth::Unknown), |address| masked_address(info, offset, address))
    };
    let original_port = short(info, 140)?..=short(info, 156)?;
    let original_port = original_port.contains(&view.packet.original_port.into()).into();
    // In the order of the flags `XT_CONNTRACK_*`.
    let checks = [
        has_state,
        Truth::from(short(info, 136)? == u32::from(view.packet.protocol)),
        address(0, view.original_source())?,
        address(32, Some(view.packet.original_destination))?,
        // The addresses of answers.
        Truth::Unknown,
        Truth::Unknown,
        view.status().has_any(statuses),
        // The time until it expires, and the client's port.
        Truth::Unknown,
        Truth::Unknown,
        original_port,
        Truth::Unknown,
        Truth::Unknown,
        // The first packet has the original direction.
        Truth::Yes,
    ];
    let checked = |(bit, truth): (u32, Truth)| match flags & 1 << bit {
        0 => Truth::Yes,
        flag => truth.inverted(inverted & flag != 0),
    };
    match state.tracking {
        Tracking::Unknown => None,
        Tracking::Tracked => {
            Some((0..).zip(checks).map(checked).fold(Truth::Yes, |all, truth| all & truth))
        }
        Tracking::Before | Tracking::Untracked if flags & 1 == 0 => Some(Truth::No),
        Tracking::Before | Tracking::Untracked => Some(checked((0, has_state))),
    }
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

/// `struct xt_addrtype_info_v1`.
fn address_type(info: &[u8], view: &View<'_>) -> Option<Truth> {
    const INVERT_SOURCE: u32 = 1;
    const INVERT_DESTINATION: u32 = 2;
    let (source, destination, flags) = (short(info, 0)?, short(info, 2)?, long(info, 4)?);
    // The other flags limit the search to the routes of an interface.
    let is_limited = flags & !(INVERT_SOURCE | INVERT_DESTINATION) != 0;
    let mut result = Truth::Yes;
    if source != 0 {
        result = result & Truth::Unknown;
    }
    if destination != 0 {
        let kind = view.destination_type().filter(|_| !is_limited);
        let truth = kind.map_or(Truth::Unknown, |kind| (destination & 1 << kind != 0).into());
        result = result & truth.inverted(flags & INVERT_DESTINATION != 0);
    }
    Some(result)
}
