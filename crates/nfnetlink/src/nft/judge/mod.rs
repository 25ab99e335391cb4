//! What a base chain does with one packet, judged by the rules.
//!
//! The evaluation is three-valued: a match is certain, excluded or undecided. What it does not
//! understand is undecided, so that the judgement may be open, and is never wrong.
//!
//! `read` asks for rules and elements, `walk` follows the packet, `matches` and `xt` evaluate expressions.

mod matches;
mod packet;
mod read;
mod registers;
mod step;
mod truth;
mod walk;
mod xt;

use std::fmt;

pub use packet::{JudgedPacket, Mark};

#[cfg(any(test, feature = "fuzz"))]
use super::{AttachedChain, NfProto};

/// What a base chain does with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Whether the packet passes.
    pub passing: Passing,
    /// The first statement that may translate the packet's addresses or ports, or exclude it from
    /// connection tracking; `None` if no rule does that. The packet passes later NAT chains without
    /// a translation then.
    pub translation: Option<Place>,
    /// The packet mark after the chain, as far as it is known.
    pub mark: Mark,
    /// True if the chain certainly excludes the packet from connection tracking.
    pub untracked: bool,
}

impl Judgement {
    /// Returns the judgement on a chain that does not see the packet.
    fn unseen(packet: &JudgedPacket) -> Judgement {
        Judgement {
            passing: Passing::Passes,
            translation: None,
            mark: packet.mark,
            untracked: packet.untracked,
        }
    }
}

/// Whether a packet passes a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passing {
    /// The chain accepts the packet.
    Passes,
    /// The chain drops or rejects the packet here.
    Drops(Place),
    /// The chain may drop the packet.
    May {
        /// The first rule or policy that may drop it.
        place: Place,
        /// What is not known.
        why: String,
    },
}

/// A statement of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The chain.
    pub chain: String,
    /// The number of the rule, by which `nft --handle list chain` shows it; `None` for a policy.
    pub rule: Option<u64>,
    /// The statement: `drop`, `reject`, `policy drop`, or the name of a target of iptables.
    pub what: String,
}

impl fmt::Display for Place {
    /// Writes the statement and where it is: `drop in the rule with handle 7 of chain FORWARD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { chain, rule, what } = self;
        match rule {
            Some(rule) => write!(f, "{what} in the rule with handle {rule} of chain {chain}"),
            None => write!(f, "{what} of chain {chain}"),
        }
    }
}

/// Judges packets by rules and elements that the attributes of any message have.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(attrs: &crate::attr::Attrs<'_>) {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let chain = AttachedChain {
            family: NfProto::Inet,
            table: String::new(),
            chain: String::new(),
            kind: "filter".to_owned(),
            hook: 2,
            priority: 0,
            drops_by_default: false,
            devices: Vec::new(),
            rules: 1,
        };
        let packet = JudgedPacket::new(6, address, address, 80);
        walk::fuzz(attrs, &packet::View { chain: &chain, packet: &packet });
    }
}
