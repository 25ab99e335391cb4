//! The sets and maps of shunt's tables: names, keys, values. The tables of both families have the
//! same sets.

use crate::model::Family;

/// The maximum number of clients with session affinity per family; further clients get no affinity.
///
/// The agent finds stale entries in a dump of the map. For each part of a dump, the kernel walks
/// from the first element. On Linux 6.18, 131 000 elements took 0.55 s and 590 000 took 15 s.
pub const AFFINITY_SIZE: u32 = 1 << 17;

/// A field of a set's key, which a rule loads from the packet for a lookup.
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
    /// The index of a backend in a pool, in host byte order.
    Index,
}

/// The type of a map's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetValue {
    /// A verdict, such as `goto` a chain.
    Verdict,
    /// An address and a port, for destination NAT.
    Backend,
}

/// The sets and maps of shunt's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// Every ClusterIP in use.
    ClusterIps,
    /// Every load-balancer VIP and ExternalIP in use: only packets to these reach the chain
    /// `external`.
    ExternalIps,
    /// The node's addresses for NodePorts.
    NodeportIps,
    /// Frontends by address. The verdict goes to the balancer for their number of backends, rejects
    /// or drops.
    ServiceIps,
    /// Frontends by node port, with the same verdicts as `service-ips`.
    ServiceNodeports,
    /// The pools of `service-ips`.
    Endpoints,
    /// The pools of `service-nodeports`.
    NodeportEndpoints,
    /// Frontends by address whose traffic is masqueraded regardless of its source.
    MasqueradeServices,
    /// Frontends by node port whose traffic is masqueraded regardless of its source.
    MasqueradeNodeports,
    /// External frontends by address with policy Local: the verdict for traffic of local pods and
    /// the node itself.
    ShortCircuit,
    /// External frontends by node port with policy Local: the verdict for the same traffic.
    ShortCircuitNodeports,
    /// The pools of `short-circuit`.
    ShortCircuitEndpoints,
    /// The pools of `short-circuit-nodeports`.
    ShortCircuitNodeportEndpoints,
    /// Load-balancer VIPs with `loadBalancerSourceRanges`.
    RestrictedVips,
    /// The allowed sources of these VIPs, as ranges.
    AllowedSources,
    /// Frontends by address with session affinity. The verdict goes to the chain that updates
    /// `affinity` with their timeout.
    AffinityServices,
    /// Frontends by node port with session affinity, with the same verdicts as `affinity-services`.
    AffinityNodeports,
    /// The backend of each client of a frontend with session affinity. Rules add the elements,
    /// which expire.
    Affinity,
    /// Backends on this node, as source and destination: a backend may reach itself through a
    /// Service.
    Hairpin,
}

/// A kind of pools: a map of verdicts that go to balancers, and the map of their backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pools {
    /// Pools of frontends by address.
    Services,
    /// Pools of frontends by node port.
    Nodeports,
    /// Pools of frontends by address with policy Local, for traffic of local pods and the node.
    ShortCircuit,
    /// Pools of frontends by node port with policy Local, for the same traffic.
    ShortCircuitNodeports,
}

/// The number of pool sizes with balancers from the start. For a later balancer, the kernel walks
/// all elements of its map (`nf_tables_bind_set`): 20 ms at 100 000 backends.
pub const PREPARED_SIZES: u32 = 16;

impl Pools {
    /// All kinds of pools.
    pub const ALL: [Pools; 4] =
        [Pools::Services, Pools::Nodeports, Pools::ShortCircuit, Pools::ShortCircuitNodeports];

    /// Returns the map whose verdicts go to the balancers.
    #[must_use]
    pub fn verdicts(self) -> Set {
        match self {
            Pools::Services => Set::ServiceIps,
            Pools::Nodeports => Set::ServiceNodeports,
            Pools::ShortCircuit => Set::ShortCircuit,
            Pools::ShortCircuitNodeports => Set::ShortCircuitNodeports,
        }
    }

    /// Returns the map that holds the backends by slot.
    #[must_use]
    pub fn endpoints(self) -> Set {
        match self {
            Pools::Services => Set::Endpoints,
            Pools::Nodeports => Set::NodeportEndpoints,
            Pools::ShortCircuit => Set::ShortCircuitEndpoints,
            Pools::ShortCircuitNodeports => Set::ShortCircuitNodeportEndpoints,
        }
    }

    /// Returns the prefix of the balancers' chain names.
    #[must_use]
    pub fn balancer_prefix(self) -> &'static str {
        match self {
            Pools::Services => "lb-",
            Pools::Nodeports => "lb-nodeport-",
            Pools::ShortCircuit => "lb-short-circuit-",
            Pools::ShortCircuitNodeports => "lb-short-circuit-nodeport-",
        }
    }

    /// Returns true if traffic of the node itself uses these pools, too; the balancers mark it for
    /// masquerade.
    #[must_use]
    pub fn is_short_circuit(self) -> bool {
        matches!(self, Pools::ShortCircuit | Pools::ShortCircuitNodeports)
    }
}

use Field::{Destination, Index, Port, Protocol, Source};

const ADDRESS: &[Field] = &[Destination];
const FRONTEND: &[Field] = &[Destination, Protocol, Port];
const NODE_PORT: &[Field] = &[Protocol, Port];
const SLOT: &[Field] = &[Destination, Protocol, Port, Index];
const NODE_PORT_SLOT: &[Field] = &[Protocol, Port, Index];
const VERDICT: Option<SetValue> = Some(SetValue::Verdict);
const BACKEND: Option<SetValue> = Some(SetValue::Backend);

/// The sets and maps in the order of [`Set`]: name, fields of the key, type of the values.
const SETS: [(Set, &str, &[Field], Option<SetValue>); 19] = [
    (Set::ClusterIps, "cluster-ips", ADDRESS, None),
    (Set::ExternalIps, "external-ips", ADDRESS, None),
    (Set::NodeportIps, "nodeport-ips", ADDRESS, None),
    (Set::ServiceIps, "service-ips", FRONTEND, VERDICT),
    (Set::ServiceNodeports, "service-nodeports", NODE_PORT, VERDICT),
    (Set::Endpoints, "endpoints", SLOT, BACKEND),
    (Set::NodeportEndpoints, "nodeport-endpoints", NODE_PORT_SLOT, BACKEND),
    (Set::MasqueradeServices, "masquerade-services", FRONTEND, None),
    (Set::MasqueradeNodeports, "masquerade-nodeports", NODE_PORT, None),
    (Set::ShortCircuit, "short-circuit", FRONTEND, VERDICT),
    (Set::ShortCircuitNodeports, "short-circuit-nodeports", NODE_PORT, VERDICT),
    (Set::ShortCircuitEndpoints, "short-circuit-endpoints", SLOT, BACKEND),
    (
        Set::ShortCircuitNodeportEndpoints,
        "short-circuit-nodeport-endpoints",
        NODE_PORT_SLOT,
        BACKEND,
    ),
    (Set::RestrictedVips, "restricted-vips", FRONTEND, None),
    (Set::AllowedSources, "allowed-sources", &[Destination, Protocol, Port, Source], None),
    (Set::AffinityServices, "affinity-services", FRONTEND, VERDICT),
    (Set::AffinityNodeports, "affinity-nodeports", NODE_PORT, VERDICT),
    (Set::Affinity, "affinity", &[Source, Destination, Protocol, Port], BACKEND),
    (Set::Hairpin, "hairpin", &[Source, Destination], None),
];

impl Set {
    /// All sets and maps, in the order of [`Set`].
    pub const ALL: [Set; 19] = {
        let mut all = [Set::Hairpin; 19];
        let mut place = 0;
        while place < all.len() {
            all[place] = SETS[place].0;
            assert!(all[place] as usize == place, "the order of Set");
            place += 1;
        }
        all
    };

    /// Returns the name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        SETS[self as usize].1
    }

    /// Returns the set of that name; `None` if shunt has no such set.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Set> {
        Set::ALL.into_iter().find(|set| set.name() == name)
    }

    /// Returns the fields of the key, in the order of the concatenation.
    #[must_use]
    pub fn key(self) -> &'static [Field] {
        SETS[self as usize].2
    }

    /// Returns the type of the values of a map; `None` for a set.
    #[must_use]
    pub fn value(self) -> Option<SetValue> {
        SETS[self as usize].3
    }

    /// Returns true if the elements count packets: the first packet of every connection to a
    /// frontend.
    #[must_use]
    pub fn counts(self) -> bool {
        Pools::ALL.into_iter().any(|pools| pools.verdicts() == self)
    }

    /// Returns true for a hash table that only transactions change.
    #[must_use]
    pub fn is_hashed(self) -> bool {
        !self.is_dynamic() && !self.has_ranges()
    }

    /// Returns true if packets add the elements, which expire and are no part of a plan.
    #[must_use]
    pub fn is_dynamic(self) -> bool {
        self == Set::Affinity
    }

    /// Returns true if the last field of the keys is a range.
    #[must_use]
    pub fn has_ranges(self) -> bool {
        self == Set::AllowedSources
    }
}

/// Returns nft's keyword for a family's tables and addresses.
pub(super) fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
