//! The sets and maps of our tables: names, keys, values. Two tables, `ip shunt` and `ip6 shunt`,
//! have the same ones.

use crate::model::Family;

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

/// The sets and maps of our tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// Every ClusterIP in use.
    ClusterIps,
    /// The node's addresses on which NodePorts are offered.
    NodeportIps,
    /// Frontends by address: to the balancer of as many backends as they have.
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
    /// Frontends by address that have no endpoint to use: reject or drop.
    NoEndpointServices,
    /// Frontends by node port that have no endpoint to use: reject or drop.
    NoEndpointNodeports,
    /// Backends on this node, as source and as destination: they may reach themselves.
    Hairpin,
}

impl Set {
    /// All of them, in the order of the table.
    pub const ALL: [Set; 11] = [
        Set::ClusterIps,
        Set::NodeportIps,
        Set::ServiceIps,
        Set::ServiceNodeports,
        Set::Endpoints,
        Set::NodeportEndpoints,
        Set::MasqueradeServices,
        Set::MasqueradeNodeports,
        Set::NoEndpointServices,
        Set::NoEndpointNodeports,
        Set::Hairpin,
    ];

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Set::ClusterIps => "cluster-ips",
            Set::NodeportIps => "nodeport-ips",
            Set::ServiceIps => "service-ips",
            Set::ServiceNodeports => "service-nodeports",
            Set::Endpoints => "endpoints",
            Set::NodeportEndpoints => "nodeport-endpoints",
            Set::MasqueradeServices => "masquerade-services",
            Set::MasqueradeNodeports => "masquerade-nodeports",
            Set::NoEndpointServices => "no-endpoint-services",
            Set::NoEndpointNodeports => "no-endpoint-nodeports",
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
            Set::ClusterIps | Set::NodeportIps => &[Destination],
            Set::ServiceIps | Set::MasqueradeServices | Set::NoEndpointServices => {
                &[Destination, Protocol, Port]
            }
            Set::ServiceNodeports | Set::MasqueradeNodeports | Set::NoEndpointNodeports => {
                &[Protocol, Port]
            }
            Set::Endpoints => &[Destination, Protocol, Port, Index],
            Set::NodeportEndpoints => &[Protocol, Port, Index],
            Set::Hairpin => &[Source, Destination],
        }
    }

    /// What it answers, if it is a map.
    #[must_use]
    pub fn value(self) -> Option<SetValue> {
        match self {
            Set::ServiceIps
            | Set::ServiceNodeports
            | Set::NoEndpointServices
            | Set::NoEndpointNodeports => Some(SetValue::Verdict),
            Set::Endpoints | Set::NodeportEndpoints => Some(SetValue::Backend),
            Set::ClusterIps
            | Set::NodeportIps
            | Set::MasqueradeServices
            | Set::MasqueradeNodeports
            | Set::Hairpin => None,
        }
    }

    /// True if its elements count packets: the first packet of every connection to a frontend.
    #[must_use]
    pub fn counts(self) -> bool {
        matches!(self, Set::ServiceIps | Set::ServiceNodeports)
    }
}

/// nft's word for a family's tables and addresses.
pub(super) fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
