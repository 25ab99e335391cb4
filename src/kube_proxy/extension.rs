//! The matches and targets of iptables that kube-proxy's rules use, by their structures in
//! `include/uapi/linux/netfilter/xt_*.h` and `nf_nat.h`.

use nfnetlink::nft::Extension;
use shunt_core::model::Family;

use super::rules::{Action, Condition, backend};

/// The meaning of a match.
pub(super) enum Match {
    /// A comment.
    Comment(String),
    /// Conditions; none for a match that always holds.
    Conditions(Vec<Condition>),
}

/// `XT_RECENT_CHECK`, `XT_RECENT_SET` and `XT_RECENT_UPDATE` of `xt_recent.h`.
const RECENT_CHECK: u8 = 1 << 0;
const RECENT_SET: u8 = 1 << 1;
const RECENT_UPDATE: u8 = 1 << 2;
/// `XT_ADDRTYPE_LOCAL` of `xt_addrtype.h`.
const ADDRTYPE_LOCAL: u16 = 1 << 2;

/// Reads a match.
pub(super) fn condition(extension: &Extension) -> Match {
    let info = extension.info.as_slice();
    let unknown = || vec![Condition::Unknown(format!("match {}", extension.name))];
    let conditions = match (extension.name.as_str(), extension.revision) {
        ("comment", _) => {
            let end = info.iter().position(|byte| *byte == 0).unwrap_or(info.len());
            return Match::Comment(String::from_utf8_lossy(&info[..end]).into_owned());
        }
        // It counts packets.
        ("nfacct", _) => Some(Vec::new()),
        ("tcp" | "udp", 0) => ports(info, 4),
        ("sctp", 0) => ports(info, 0),
        ("statistic", 0) => statistic(info),
        ("addrtype", 1) => address_type(info),
        ("recent", 0 | 1) => recent(info),
        _ => None,
    };
    Match::Conditions(conditions.unwrap_or_else(unknown))
}

/// Reads the destination ports, a range at that offset. Source ports are not used by kube-proxy.
fn ports(info: &[u8], offset: usize) -> Option<Vec<Condition>> {
    match (short(info, offset)?, short(info, offset + 2)?) {
        (0, u16::MAX) => Some(Vec::new()),
        // `xt_sctp` without ports, by its flags.
        (0, 0) => Some(Vec::new()),
        (first, last) if first == last => Some(vec![Condition::Port(first)]),
        _ => None,
    }
}

/// `struct xt_statistic_info`: mode, flags, and the probability in units of 2^-31.
fn statistic(info: &[u8]) -> Option<Vec<Condition>> {
    const RANDOM: u16 = 0;
    const UNIT: f64 = 2_147_483_648.0;
    let plain = short(info, 0)? == RANDOM && short(info, 2)? == 0;
    let probability = f64::from(long(info, 4)?) / UNIT;
    plain.then(|| vec![Condition::Probability(probability)])
}

/// `struct xt_addrtype_info_v1`: masks for source and destination, and flags.
fn address_type(info: &[u8]) -> Option<Vec<Condition>> {
    let (source, destination) = (short(info, 0)?, short(info, 2)?);
    match (source, destination, long(info, 4)?) {
        (ADDRTYPE_LOCAL, 0, 0) => Some(vec![Condition::SourceIsLocal]),
        (0, ADDRTYPE_LOCAL, 0) => Some(vec![Condition::DestinationIsLocal]),
        _ => None,
    }
}

/// `struct xt_recent_mtinfo`: seconds, count of hits, the operation.
fn recent(info: &[u8]) -> Option<Vec<Condition>> {
    let operation = *info.get(8)?;
    if operation & (RECENT_CHECK | RECENT_UPDATE) != 0 {
        Some(vec![Condition::Affinity(long(info, 0)?)])
    } else {
        // It remembers the client, and always holds.
        (operation & RECENT_SET != 0).then(Vec::new)
    }
}

/// Reads a target.
pub(super) fn action(family: Family, extension: &Extension) -> Action {
    let unknown = || Action::Unknown(format!("target {}", extension.name));
    match extension.name.as_str() {
        "DNAT" => translation(family, extension).unwrap_or_else(unknown),
        "MARK" => Action::SetMark,
        "REJECT" => Action::Reject,
        _ => unknown(),
    }
}

fn translation(family: Family, extension: &Extension) -> Option<Action> {
    let info = extension.info.as_slice();
    let (address, port) = match (extension.revision, family) {
        // `struct nf_nat_ipv4_multi_range_compat`: the number of ranges, then flags, two addresses
        // and two ports.
        (0, Family::V4) => (8, 16),
        // `struct nf_nat_range` and `nf_nat_range2`: flags, two addresses of 16 bytes, two ports.
        _ => (4, 36),
    };
    Some(Action::Translate(backend(family, info.get(address..)?, info.get(port..)?)?))
}

fn short(info: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*info.get(offset..)?.first_chunk()?))
}

fn long(info: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*info.get(offset..)?.first_chunk()?))
}
