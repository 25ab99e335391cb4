//! The forwarding of kube-proxy on this node, in the same form for all its modes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use shunt_core::model::{Backend, Family};
use shunt_core::plan::{FrontendKey, SourceRange};

/// A mode of kube-proxy (`mode` in its configuration).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Its own tables in nf_tables.
    Nftables,
    /// Chains in the tables of iptables, which nf_tables holds (`iptables-nft`).
    Iptables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
        })
    }
}

/// All frontends of kube-proxy on this node, and its settings as far as its rules show them.
#[derive(Debug, Clone, PartialEq)]
pub struct Forwarding {
    /// The mode that was read.
    pub mode: Mode,
    /// The frontends.
    pub frontends: BTreeMap<FrontendKey, Frontend>,
    /// The settings for each family whose rules were read.
    pub settings: BTreeMap<Family, Settings>,
}

/// Settings of kube-proxy that concern all Services of a family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The addresses of node ports.
    pub node_port_addresses: Option<NodePortAddresses>,
    /// True if the node answers to node ports on its loopback addresses.
    pub loopback_node_ports: bool,
    /// The criterion for traffic of local pods.
    pub local_traffic: LocalTraffic,
    /// True if all traffic to ClusterIPs is masqueraded (`masqueradeAll`).
    pub masquerade_all: bool,
}

/// The criterion for traffic of local pods (`detectLocalMode`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LocalTraffic {
    /// The rules do not show it.
    #[default]
    Unknown,
    /// No traffic counts as that of local pods.
    NotDetected,
    /// A match in nft's syntax, such as `ip saddr 10.244.0.0/16`.
    By(String),
}

/// The addresses of the node that answer to node ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Every local address.
    All,
    /// These addresses.
    Only(BTreeSet<IpAddr>),
}

/// The treatment of new connections to a frontend.
#[derive(Debug, Clone, PartialEq)]
pub struct Frontend {
    /// The service port, as `namespace/name:port`, if the rules name it.
    pub label: Option<String>,
    /// The outcome for a client outside of the node.
    pub outcome: Outcome,
    /// The outcome for the node itself.
    pub from_node: Outcome,
    /// True if the traffic is masqueraded regardless of its source.
    pub masquerade: bool,
    /// The timeout of session affinity in seconds.
    pub affinity: Option<u32>,
    /// The sources that may use the frontend.
    pub sources: Sources,
    /// The parts of its rules that were not understood, so that other fields may be wrong.
    pub unknown: BTreeSet<String>,
}

/// The sources that may use a frontend (`loadBalancerSourceRanges`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sources {
    /// Not known.
    Unknown,
    /// All sources.
    All,
    /// These ranges, sorted and merged.
    Only(Vec<SourceRange>),
}

/// The outcome of a new connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It goes to one of these backends, each with its probability.
    Balance(BTreeMap<Backend, f64>),
    /// The kernel rejects it with port unreachable.
    Reject,
    /// The kernel drops it.
    Drop,
    /// No rule translates, rejects or drops it.
    Untranslated,
}

impl Outcome {
    /// Returns the backends with their probabilities; none for other outcomes.
    pub fn backends(&self) -> impl Iterator<Item = (&Backend, f64)> {
        let backends = match self {
            Outcome::Balance(backends) => Some(backends),
            _ => None,
        };
        backends.into_iter().flatten().map(|(backend, share)| (backend, *share))
    }

    /// Returns true if both are the same, but for rounding: iptables computes with probabilities of
    /// ten digits.
    #[must_use]
    pub fn is_like(&self, other: &Outcome) -> bool {
        match (self, other) {
            (Outcome::Balance(own), Outcome::Balance(others)) => {
                own.len() == others.len()
                    && own.iter().zip(others).all(|((own, share), (other, other_share))| {
                        own == other && shares_are_equal(*share, *other_share)
                    })
            }
            _ => self == other,
        }
    }
}

/// Returns true if two probabilities are equal but for rounding.
#[must_use]
pub fn shares_are_equal(one: f64, other: f64) -> bool {
    (one - other).abs() <= 0.001 * one.max(other)
}

/// Sorts ranges, and merges those that overlap or follow each other.
pub(crate) fn merged(mut ranges: Vec<SourceRange>) -> Vec<SourceRange> {
    ranges.sort_unstable();
    let mut merged: Vec<SourceRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.first <= after(last.last).unwrap_or(last.last) => {
                last.last = last.last.max(range.last);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the next address; `None` behind the last one.
fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => u32::from(v4).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(v6) => u128::from(v6).checked_add(1).map(|next| IpAddr::V6(next.into())),
    }
}

/// Returns the address before; `None` before the first one.
pub(super) fn before(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => u32::from(v4).checked_sub(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(v6) => u128::from(v6).checked_sub(1).map(|next| IpAddr::V6(next.into())),
    }
}
