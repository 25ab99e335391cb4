//! A frontend: an address and port, or a node port, under which a service port is reached.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::Pools;
use crate::model::{Backend, Family, Protocol};

/// The key of a frontend, which belongs to one service port at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKey {
    /// A ClusterIP, ExternalIP or load-balancer VIP with a port.
    Address(IpAddr, Protocol, u16),
    /// A port on the node's own addresses of a family.
    NodePort(Family, Protocol, u16),
}

impl FrontendKey {
    /// Returns the protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            FrontendKey::Address(_, protocol, _) | FrontendKey::NodePort(_, protocol, _) => {
                *protocol
            }
        }
    }

    /// Returns true if flows end with their backend (UDP), or if it has never answered (TCP). Flows
    /// of SCTP never do.
    #[must_use]
    pub fn is_swept(&self) -> bool {
        matches!(self.protocol(), Protocol::Tcp | Protocol::Udp)
    }

    /// Returns the family of its table.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            FrontendKey::Address(address, ..) => Family::of(*address),
            FrontendKey::NodePort(family, ..) => *family,
        }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrontendKey::Address(IpAddr::V4(address), protocol, port) => {
                write!(f, "{address}:{port}/{protocol}")
            }
            FrontendKey::Address(IpAddr::V6(address), protocol, port) => {
                write!(f, "[{address}]:{port}/{protocol}")
            }
            FrontendKey::NodePort(family, protocol, port) => {
                write!(f, "node port {port}/{protocol} ({family})")
            }
        }
    }
}

/// The kind of a frontend, in the order of precedence: a Service keeps its ClusterIP against claims
/// of other Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrontendKind {
    /// A port of its ClusterIP.
    ClusterIp,
    /// A port of a load-balancer VIP.
    Vip,
    /// A port of one of its `externalIPs`.
    ExternalIp,
    /// A node port, which no other kind can be.
    NodePort,
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrontendKind::ClusterIp => "ClusterIP",
            FrontendKind::Vip => "load-balancer VIP",
            FrontendKind::ExternalIp => "ExternalIP",
            FrontendKind::NodePort => "NodePort",
        })
    }
}

/// The outcome of a new connection to a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It goes to one of these, each with the same chance. Never empty. The place in the list is
    /// the index in the kernel's map.
    Balance(Arc<[Backend]>),
    /// The kernel answers with port unreachable: the service port has no endpoint at all.
    Reject,
    /// The kernel drops it: the policy is Local and no endpoint is local.
    Drop,
}

/// The desired state of one frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// The service port that it belongs to, as `namespace/name:port`; the comment of its elements.
    pub label: Arc<str>,
    /// The outcome of a new connection.
    pub outcome: Outcome,
    /// Its traffic is masqueraded, wherever it comes from.
    pub masquerade: bool,
    /// Where traffic of local pods and of the node itself goes instead, if the policy is Local:
    /// as if it had gone out and come back, it may use all endpoints. Empty if there is no such
    /// exception.
    pub short_circuit: Arc<[Backend]>,
    /// For how many seconds after its last connection a client stays with its backend; `None` for
    /// not at all.
    pub affinity: Option<u32>,
    /// Who may use it (`loadBalancerSourceRanges`), in order and without overlaps; `None` for
    /// everybody.
    pub sources: Option<Arc<[SourceRange]>>,
}

/// A range of source addresses of one family, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRange {
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
}

impl Frontend {
    /// Returns the non-empty pools of the frontend.
    pub fn pools(&self, key: FrontendKey) -> impl Iterator<Item = (Pools, &Arc<[Backend]>)> {
        let (main, short_circuit) = Frontend::pools_of(key);
        let balanced = self.main_pool().map(|pool| (main, pool));
        let short_circuit = Some((short_circuit, &self.short_circuit));
        balanced.into_iter().chain(short_circuit.filter(|(_, pool)| !pool.is_empty()))
    }

    /// Returns the pool of its outcome, if it has one.
    #[must_use]
    pub fn main_pool(&self) -> Option<&Arc<[Backend]>> {
        match &self.outcome {
            Outcome::Balance(pool) => Some(pool),
            Outcome::Reject | Outcome::Drop => None,
        }
    }

    /// Returns the kinds of pools of a frontend: for its outcome, and for its short circuit.
    #[must_use]
    pub fn pools_of(key: FrontendKey) -> (Pools, Pools) {
        match key {
            FrontendKey::Address(..) => (Pools::Services, Pools::ShortCircuit),
            FrontendKey::NodePort(..) => (Pools::Nodeports, Pools::ShortCircuitNodeports),
        }
    }

    /// Returns the backends of both its pools, that of the outcome first.
    #[must_use]
    pub fn all_pools(&self) -> [&[Backend]; 2] {
        let main = self.main_pool().map_or(&[][..], |pool| pool);
        [main, &self.short_circuit]
    }

    /// Returns one of its pools; empty if it has none of that kind.
    #[must_use]
    pub fn pool(&self, key: FrontendKey, pools: Pools) -> &[Backend] {
        self.pools(key).find(|(kind, _)| *kind == pools).map_or(&[], |(_, pool)| pool)
    }
}
