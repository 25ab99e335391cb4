//! The language of rules: what chains consist of.

use std::borrow::Cow;

use ipnet::IpNet;

use super::{ChainName, Pools, Set, TcpTimeouts};
use crate::model::{Balancing, Protocol};

/// The hook of a base chain. The chains of type nat see the first packet of a connection only
/// (`nf_nat_inet_fn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseHook {
    /// Packets that arrive.
    Prerouting,
    /// Packets for the node itself.
    Input,
    /// Packets that the node itself sends.
    Output,
    /// Packets that leave.
    Postrouting,
    /// Every packet that the node forwards: a chain of type filter.
    FilterForward,
    /// Every packet that arrives: a chain of type filter.
    FilterPrerouting,
    /// Every packet that the node itself sends: a chain of type filter.
    FilterOutput,
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The name, unique in the table.
    pub name: ChainName,
    /// The hook and the priority of a base chain (`NF_IP_PRI_*` of `linux/netfilter_ipv4.h`).
    pub base: Option<(BaseHook, i32)>,
    /// The rules, in the order of evaluation.
    pub rules: Vec<Rule>,
}

/// A rule. The kernel evaluates its statements in order, until one does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The matches and actions, in order.
    pub statements: Vec<Statement>,
    /// The purpose of the rule, which `nft list` shows.
    pub comment: Option<Cow<'static, str>>,
}

/// One match or action of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// Matches a source address in, or not in, this prefix.
    Source(IpNet, Is),
    /// Matches a destination address in, or not in, this prefix.
    Destination(IpNet, Is),
    /// Matches packets that arrived, or did not arrive, on the interface of this name.
    Interface(String, Is),
    /// Matches packets that arrived, or did not arrive, on an interface with this name prefix.
    InterfacePrefix(String, Is),
    /// Matches a source that is an address of the node.
    SourceIsLocal,
    /// Matches a destination that is, or is not, an address of the node.
    DestinationIsLocal(Is),
    /// Matches a connection whose destination NAT has translated.
    Translated,
    /// Matches a packet of the client in an established TCP connection whose server, after destination
    /// NAT, is a gone endpoint.
    ToGoneEndpoint,
    /// Matches a SYN-ACK that belongs to no connection.
    LateAnswer,
    /// Matches the transport protocol.
    Protocol(Protocol),
    /// Gives a TCP connection that begins with this SYN these timeouts, which are an object of the table.
    SetTimeouts(TcpTimeouts),
    /// Matches a packet whose key is, or is not, in the set.
    InSet(Set, Is),
    /// Follows the verdict of the map for the packet's key, if the map has the key.
    Dispatch(Set),
    /// Follows the verdict of the map for the packet's key before NAT, if the map has the key.
    DispatchUntranslated(Set),
    /// Translates the destination to the backend at an index below this number, if the pools have one.
    Balance(Pools, Balancing, u32),
    /// Translates the destination to the client's backend in `affinity`, if there is one.
    AffinityLookup,
    /// Stores the client's backend in `affinity` for this number of seconds.
    AffinityUpdate(u32),
    /// Matches a mark with at least one of these bits.
    HasMark(u32),
    /// Sets these bits of the mark, without a change of other bits.
    SetMark(u32),
    /// Clears these bits of the mark, without a change of other bits.
    ClearMark(u32),
    /// Continues in a chain, and returns after its end.
    Jump(ChainName),
    /// Continues in a chain, without a return.
    Goto(ChainName),
    /// Translates the source to an address of the node.
    Masquerade,
    /// Rejects the packet with port unreachable (ICMP or ICMPv6).
    Reject,
    /// Rejects the packet of a TCP connection with a reset.
    Reset,
    /// Drops the packet.
    Drop,
    /// Ends the chain.
    Return,
}

/// The sense of a match: as it stands, or negated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// The condition holds (`==`).
    So,
    /// The condition does not hold (`!=`).
    Not,
}

pub(super) fn rule(statements: impl IntoIterator<Item = Statement>) -> Rule {
    Rule { statements: statements.into_iter().collect(), comment: None }
}

pub(super) fn because(
    comment: impl Into<Cow<'static, str>>,
    statements: impl IntoIterator<Item = Statement>,
) -> Rule {
    Rule { comment: Some(comment.into()), ..rule(statements) }
}
