//! The names of the chains of shunt's tables.

use std::fmt;

use super::{PREPARED_SIZES, Pools};
use crate::model::Balancing;

/// The name of one of shunt's chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// Base chain: packets that arrive, before routing.
    NatPrerouting,
    /// Base chain: packets that the node itself sends.
    NatOutput,
    /// Base chain: packets that leave.
    NatPostrouting,
    /// Base chain: packets that leave, before any masquerade. Exists while a frontend has session
    /// affinity.
    AffinityPostrouting,
    /// Base chain: packets for the node itself. Exists while a frontend has session affinity.
    AffinityInput,
    /// Base chain: resets connections to gone endpoints, for packets that arrive. Exists while
    /// there are gone endpoints.
    ResetPrerouting,
    /// Base chain: the same for packets that the node itself sends.
    ResetOutput,
    /// Base chain: packets that the node forwards.
    Forward,
    /// Looks up the frontend of a packet by address.
    Services,
    /// Applies the rules for VIPs and ExternalIPs only: source ranges, short circuit, masquerade.
    External,
    /// Looks up the frontend of a packet to one of the node's own addresses by port.
    Nodeports,
    /// Rejects packets to frontends without endpoints.
    Reject,
    /// Marks packets from the node itself to an external frontend with policy Local, for
    /// masquerade.
    MarkNode,
    /// Sends a client of a frontend with session affinity to its last backend.
    AffinityLookup,
    /// Looks up the affinity timeout of the frontend that the client connected to.
    AffinityUpdate,
    /// Lets the entry of a connection end after a second without an answer.
    ShortAttempt,
    /// Remembers the Node ([`recall`](super::recall)). No packet comes here.
    Node,
    /// Stores the backend of a client for this number of seconds.
    AffinityTimeout(u32),
    /// Sends a connection to one of the backends of a frontend.
    Balancer {
        /// The pools that hold the backends.
        pools: Pools,
        /// How it chooses a slot.
        balancing: Balancing,
        /// True if a client returns to its last backend (session affinity).
        affinity: bool,
        /// The number of slots.
        count: u32,
    },
}

impl ChainName {
    /// Returns the chain of that name; `None` if shunt has no such chain.
    #[must_use]
    pub fn parse(name: &str) -> Option<ChainName> {
        // Only the canonical form of a name matches: `lb-1`, not `lb-01`.
        let exact = |chain: ChainName| (chain.to_string() == name).then_some(chain);
        let balancer = |pools: Pools| {
            let rest = name.strip_prefix(pools.balancer_prefix())?;
            let (affinity, rest) = match rest.strip_prefix(AFFINITY) {
                Some(rest) => (true, rest),
                None => (false, rest),
            };
            let hashed = HASHES
                .into_iter()
                .find_map(|(hash, prefix)| Some((hash, rest.strip_prefix(prefix)?)));
            let (balancing, count) = hashed.unwrap_or((Balancing::Random, rest));
            exact(ChainName::Balancer { pools, balancing, affinity, count: count.parse().ok()? })
        };
        let timeout =
            || exact(ChainName::AffinityTimeout(name.strip_prefix(AFFINITY)?.parse().ok()?));
        FIXED
            .into_iter()
            .find_map(|(chain, text)| (text == name).then_some(chain))
            .or_else(timeout)
            .or_else(|| Pools::ALL.into_iter().find_map(balancer))
    }

    /// Returns true if the chain exists only while some frontend needs it.
    #[must_use]
    pub fn is_on_demand(self) -> bool {
        match self {
            ChainName::Balancer { balancing, affinity, count, .. } => {
                affinity || balancing != Balancing::Random || count > PREPARED_SIZES
            }
            ChainName::AffinityTimeout(_)
            | ChainName::AffinityPostrouting
            | ChainName::AffinityInput => true,
            name => name.is_for_gone_endpoints(),
        }
    }

    /// Returns true if the chain exists only while there are gone endpoints.
    #[must_use]
    pub fn is_for_gone_endpoints(self) -> bool {
        ChainName::FOR_GONE_ENDPOINTS.contains(&self)
    }

    /// The chains that exist only while there are gone endpoints.
    pub const FOR_GONE_ENDPOINTS: [ChainName; 2] =
        [ChainName::ResetPrerouting, ChainName::ResetOutput];
}

const AFFINITY: &str = "affinity-";
const HASHES: [(Balancing, &str); 2] = [
    (Balancing::SourceHash, "source-hash-"),
    (Balancing::SourceAndPortHash, "source-and-port-hash-"),
];

const FIXED: [(ChainName, &str); 17] = [
    (ChainName::NatPrerouting, "nat-prerouting"),
    (ChainName::NatOutput, "nat-output"),
    (ChainName::NatPostrouting, "nat-postrouting"),
    (ChainName::AffinityPostrouting, "affinity-postrouting"),
    (ChainName::AffinityInput, "affinity-input"),
    (ChainName::ResetPrerouting, "reset-prerouting"),
    (ChainName::ResetOutput, "reset-output"),
    (ChainName::Forward, "forward"),
    (ChainName::Services, "services"),
    (ChainName::External, "external"),
    (ChainName::Nodeports, "nodeports"),
    (ChainName::Reject, "reject-no-endpoints"),
    (ChainName::MarkNode, "mark-node"),
    (ChainName::AffinityLookup, "affinity-lookup"),
    (ChainName::AffinityUpdate, "affinity-update"),
    (ChainName::ShortAttempt, "short-attempt"),
    (ChainName::Node, "node"),
];

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainName::AffinityTimeout(seconds) => write!(f, "{AFFINITY}{seconds}"),
            ChainName::Balancer { pools, balancing, affinity, count } => {
                let affinity = if *affinity { AFFINITY } else { "" };
                let hash = HASHES.iter().find(|(hash, _)| hash == balancing);
                let hash = hash.map_or("", |(_, prefix)| prefix);
                write!(f, "{}{affinity}{hash}{count}", pools.balancer_prefix())
            }
            fixed => {
                let text = FIXED.iter().find(|(chain, _)| chain == fixed).map(|(_, text)| *text);
                f.write_str(text.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_names_are_read_as_they_are_written() {
        let balancers = Pools::ALL.into_iter().flat_map(|pools| {
            let kinds = Balancing::ALL.into_iter().flat_map(|it| [(it, false), (it, true)]);
            kinds.map(move |(balancing, affinity)| ChainName::Balancer {
                pools,
                balancing,
                affinity,
                count: 12,
            })
        });
        let names = FIXED
            .into_iter()
            .map(|(chain, _)| chain)
            .chain(balancers)
            .chain([ChainName::AffinityTimeout(10_800)]);
        for name in names {
            assert_eq!(ChainName::parse(&name.to_string()), Some(name));
        }
        for foreign in ["", "lb-", "lb-03", "lb-x", "lb-nodeport", "lb-short-circuit-", "input"] {
            assert_eq!(ChainName::parse(foreign), None, "{foreign}");
        }
    }
}
