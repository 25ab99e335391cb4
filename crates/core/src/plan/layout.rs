//! The sets and maps of shunt's tables: names, keys, values. Two tables, `ip shunt` and `ip6
//! shunt`, have the same ones.

use crate::model::Family;

/// How many clients have session affinity per family; clients beyond that are served without.
///
/// Stale entries are found by listing them all, and the kernel begins each part of a list
/// with a walk from the first element: 131 000 were listed in 0.55 s, 590 000 in 15 s (Linux 6.18).
pub const AFFINITY_SIZE: u32 = 1 << 17;

/// A field of a set's key, which is also what a rule loads to look it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The source address of the packet.
    Source,
    /// The destination address of the packet.
    Destination,
    /// The transport protocol.
    Protocol,
    /// The destination port.
    Port,
    /// The index of a backend in a pool, in host order.
    Index,
}

/// What a map answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetValue {
    /// A verdict.
    Verdict,
    /// An address and a port.
    Backend,
}

/// The sets and maps of shunt's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// Every ClusterIP in use.
    ClusterIps,
    /// Every load-balancer VIP and ExternalIP in use: only packets to these meet the chain
    /// `external`.
    ExternalIps,
    /// The node's addresses on which NodePorts are offered.
    NodeportIps,
    /// Frontends by address: to the balancer of as many backends as they have, or reject, or drop.
    ServiceIps,
    /// Frontends by node port: likewise.
    ServiceNodeports,
    /// The pools of frontends by address.
    Endpoints,
    /// The pools of frontends by node port.
    NodeportEndpoints,
    /// Frontends by address whose traffic is masqueraded wherever it comes from.
    MasqueradeServices,
    /// Frontends by node port whose traffic is masqueraded.
    MasqueradeNodeports,
    /// External frontends by address with policy Local: where traffic of local pods and of the
    /// node itself goes.
    ShortCircuit,
    /// External frontends by node port with policy Local: likewise.
    ShortCircuitNodeports,
    /// The pools of these by address.
    ShortCircuitEndpoints,
    /// The pools of these by node port.
    ShortCircuitNodeportEndpoints,
    /// Load-balancer VIPs that only some sources may use.
    RestrictedVips,
    /// The sources that may use them, as ranges.
    AllowedSources,
    /// Frontends by address with session affinity: to the chain that updates `affinity` with their
    /// timeout.
    AffinityServices,
    /// Frontends by node port with session affinity: likewise.
    AffinityNodeports,
    /// The backend of each client of a frontend with session affinity. Rules add its elements, and
    /// they expire.
    Affinity,
    /// Backends on this node, as source and as destination: they may reach themselves.
    Hairpin,
}

/// A family of pools: a map of verdicts that leads to balancers, and the map of their backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pools {
    /// Of frontends by address.
    Services,
    /// Of frontends by node port.
    Nodeports,
    /// Of frontends by address, for traffic of local pods and the node where the policy is Local.
    ShortCircuit,
    /// Of frontends by node port, likewise.
    ShortCircuitNodeports,
}

/// How many sizes of pools have their balancers from the start. A balancer that is added later
/// makes the kernel walk all elements of its map (`nf_tables_bind_set`): 20 ms at 100 000 backends.
pub const PREPARED_SIZES: u32 = 16;

impl Pools {
    /// All of them.
    pub const ALL: [Pools; 4] =
        [Pools::Services, Pools::Nodeports, Pools::ShortCircuit, Pools::ShortCircuitNodeports];

    /// The map whose verdicts lead to the balancers.
    #[must_use]
    pub fn verdicts(self) -> Set {
        match self {
            Pools::Services => Set::ServiceIps,
            Pools::Nodeports => Set::ServiceNodeports,
            Pools::ShortCircuit => Set::ShortCircuit,
            Pools::ShortCircuitNodeports => Set::ShortCircuitNodeports,
        }
    }

    /// The map of the backends.
    #[must_use]
    pub fn endpoints(self) -> Set {
        match self {
            Pools::Services => Set::Endpoints,
            Pools::Nodeports => Set::NodeportEndpoints,
            Pools::ShortCircuit => Set::ShortCircuitEndpoints,
            Pools::ShortCircuitNodeports => Set::ShortCircuitNodeportEndpoints,
        }
    }

    /// The beginning of the names of the balancers.
    #[must_use]
    pub fn balancer_prefix(self) -> &'static str {
        match self {
            Pools::Services => "lb-",
            Pools::Nodeports => "lb-nodeport-",
            Pools::ShortCircuit => "lb-short-circuit-",
            Pools::ShortCircuitNodeports => "lb-short-circuit-nodeport-",
        }
    }

    /// True if they are used by traffic of the node itself too, which then is masqueraded.
    #[must_use]
    pub fn is_short_circuit(self) -> bool {
        matches!(self, Pools::ShortCircuit | Pools::ShortCircuitNodeports)
    }
}

impl Set {
    /// All of them, in the order of the table.
    pub const ALL: [Set; 19] = [
        Set::ClusterIps,
        Set::ExternalIps,
        Set::NodeportIps,
        Set::ServiceIps,
        Set::ServiceNodeports,
        Set::Endpoints,
        Set::NodeportEndpoints,
        Set::MasqueradeServices,
        Set::MasqueradeNodeports,
        Set::ShortCircuit,
        Set::ShortCircuitNodeports,
        Set::ShortCircuitEndpoints,
        Set::ShortCircuitNodeportEndpoints,
        Set::RestrictedVips,
        Set::AllowedSources,
        Set::AffinityServices,
        Set::AffinityNodeports,
        Set::Affinity,
        Set::Hairpin,
    ];

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Set::ClusterIps => "cluster-ips",
            Set::ExternalIps => "external-ips",
            Set::NodeportIps => "nodeport-ips",
            Set::ServiceIps => "service-ips",
            Set::ServiceNodeports => "service-nodeports",
            Set::Endpoints => "endpoints",
            Set::NodeportEndpoints => "nodeport-endpoints",
            Set::MasqueradeServices => "masquerade-services",
            Set::MasqueradeNodeports => "masquerade-nodeports",
            Set::ShortCircuit => "short-circuit",
            Set::ShortCircuitNodeports => "short-circuit-nodeports",
            Set::ShortCircuitEndpoints => "short-circuit-endpoints",
            Set::ShortCircuitNodeportEndpoints => "short-circuit-nodeport-endpoints",
            Set::RestrictedVips => "restricted-vips",
            Set::AllowedSources => "allowed-sources",
            Set::AffinityServices => "affinity-services",
            Set::AffinityNodeports => "affinity-nodeports",
            Set::Affinity => "affinity",
            Set::Hairpin => "hairpin",
        }
    }

    /// The set of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Set> {
        Set::ALL.into_iter().find(|set| set.name() == name)
    }

    /// The fields of its key.
    #[must_use]
    pub fn key(self) -> &'static [Field] {
        use Field::{Destination, Index, Port, Protocol, Source};
        match self {
            Set::ClusterIps | Set::ExternalIps | Set::NodeportIps => &[Destination],
            Set::ServiceIps
            | Set::MasqueradeServices
            | Set::ShortCircuit
            | Set::RestrictedVips
            | Set::AffinityServices => &[Destination, Protocol, Port],
            Set::ServiceNodeports
            | Set::MasqueradeNodeports
            | Set::ShortCircuitNodeports
            | Set::AffinityNodeports => &[Protocol, Port],
            Set::Endpoints | Set::ShortCircuitEndpoints => &[Destination, Protocol, Port, Index],
            Set::NodeportEndpoints | Set::ShortCircuitNodeportEndpoints => &[Protocol, Port, Index],
            Set::AllowedSources => &[Destination, Protocol, Port, Source],
            Set::Affinity => &[Source, Destination, Protocol, Port],
            Set::Hairpin => &[Source, Destination],
        }
    }

    /// What it answers, if it is a map.
    #[must_use]
    pub fn value(self) -> Option<SetValue> {
        match self {
            Set::ServiceIps
            | Set::ServiceNodeports
            | Set::ShortCircuit
            | Set::ShortCircuitNodeports
            | Set::AffinityServices
            | Set::AffinityNodeports => Some(SetValue::Verdict),
            Set::Endpoints
            | Set::NodeportEndpoints
            | Set::ShortCircuitEndpoints
            | Set::ShortCircuitNodeportEndpoints
            | Set::Affinity => Some(SetValue::Backend),
            Set::ClusterIps
            | Set::ExternalIps
            | Set::NodeportIps
            | Set::MasqueradeServices
            | Set::MasqueradeNodeports
            | Set::RestrictedVips
            | Set::AllowedSources
            | Set::Hairpin => None,
        }
    }

    /// True if its elements count packets: the first packet of every connection to a frontend.
    #[must_use]
    pub fn counts(self) -> bool {
        Pools::ALL.into_iter().any(|pools| pools.verdicts() == self)
    }

    /// True if packets add its elements, which expire: they are no part of a plan.
    #[must_use]
    pub fn is_dynamic(self) -> bool {
        self == Set::Affinity
    }

    /// True if the last field of its keys is a range.
    #[must_use]
    pub fn has_ranges(self) -> bool {
        self == Set::AllowedSources
    }
}

/// nft's word for a family's tables and addresses.
pub(super) fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
