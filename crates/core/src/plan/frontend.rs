//! A frontend: an address and port, or a node port, under which a service port is reached.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Larger, Pools};
use crate::model::{Backend, Balancing, Family, Protocol, ServicePort};

/// The key of a frontend. A frontend belongs to one service port at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKey {
    /// A ClusterIP, ExternalIP or load-balancer VIP with a port.
    Address(IpAddr, Protocol, u16),
    /// A port on the node's own addresses of a family.
    NodePort(Family, Protocol, u16),
}

impl FrontendKey {
    /// Returns the transport protocol of the connections.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            FrontendKey::Address(_, protocol, _) | FrontendKey::NodePort(_, protocol, _) => {
                *protocol
            }
        }
    }

    /// Returns true if the agent deletes flows to removed backends, as it does for UDP. Of TCP, the
    /// kernel ends attempts by itself ([`TcpTimeouts`](super::TcpTimeouts)), and connections stay.
    #[must_use]
    pub fn is_swept(&self) -> bool {
        self.protocol() == Protocol::Udp
    }

    /// Returns true if the frontend is one of a Service port.
    #[must_use]
    pub fn is_of(&self, port: &ServicePort) -> bool {
        port.protocol == self.protocol()
            && match self {
                FrontendKey::Address(_, _, number) => port.port == *number,
                FrontendKey::NodePort(_, _, number) => port.node_port == Some(*number),
            }
    }

    /// Returns the family of the table that has the frontend.
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

/// The kind of a frontend, in descending precedence: a Service keeps its ClusterIP against claims
/// of other Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrontendKind {
    /// A port of a ClusterIP of the Service.
    ClusterIp,
    /// A port of a load-balancer VIP.
    Vip,
    /// A port of one of the Service's `externalIPs`.
    ExternalIp,
    /// A node port, which never conflicts with other kinds.
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
    /// The kernel sends it to the backend in one of these slots. Never empty. The position in the
    /// list is the index in the kernel's map. A backend may have several slots.
    Balance(Arc<[Backend]>),
    /// The kernel rejects it with port unreachable: the service port has no endpoint at all.
    Reject,
    /// The kernel drops it: the policy is Local and no endpoint is local.
    Drop,
}

/// The desired state of one frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// The service port, as `namespace/name:port`; the comment of the frontend's elements.
    pub label: Arc<str>,
    /// The outcome of a new connection.
    pub outcome: Outcome,
    /// How the kernel chooses a slot of the pools; [`Balancing::Random`] without pools.
    pub balancing: Balancing,
    /// True if the kernel masquerades the traffic, regardless of its source.
    pub masquerade: bool,
    /// The backends for traffic of local pods and the node itself, if the policy is Local. That
    /// traffic may use all endpoints, as if it had left the node and come back. Empty without such
    /// an exception.
    pub short_circuit: Arc<[Backend]>,
    /// The timeout of session affinity in seconds, since the client's last connection; `None`
    /// without session affinity.
    pub affinity: Option<u32>,
    /// The allowed sources (`loadBalancerSourceRanges`), sorted and without overlaps; `None` for
    /// all sources.
    pub sources: Option<Arc<[SourceRange]>>,
    /// The larger pools that it may keep ([`Frontend::sized`]); in a plan only.
    pub larger: Option<Arc<Larger>>,
}

/// A range of source addresses of one family, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRange {
    /// The lowest address of the range.
    pub first: IpAddr,
    /// The highest address of the range.
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

    /// Returns the pool of the outcome; `None` if the kernel rejects or drops connections.
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

    /// Returns the slots of both pools, the outcome's pool first.
    #[must_use]
    pub fn all_pools(&self) -> [&[Backend]; 2] {
        let main = self.main_pool().map_or(&[][..], |pool| pool);
        [main, &self.short_circuit]
    }

    /// Returns the pool of that kind; empty if the frontend has none.
    #[must_use]
    pub fn pool(&self, key: FrontendKey, pools: Pools) -> &[Backend] {
        self.pools(key).find(|(kind, _)| *kind == pools).map_or(&[], |(_, pool)| pool)
    }
}
