//! A frontend: an address and port, or a node port, under which a service port is reached.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{Backend, Family, Protocol};

/// What a frontend is known by. It belongs to one service port at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKey {
    /// A ClusterIP, ExternalIP or load-balancer VIP with a port.
    Address(IpAddr, Protocol, u16),
    /// A port on the node's own addresses of a family.
    NodePort(Family, Protocol, u16),
}

impl FrontendKey {
    /// The family whose table it is in.
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

/// What happens to a new connection to a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It goes to one of these, each with the same chance. Never empty. The place in the list is
    /// the index in the kernel's map.
    Balance(Arc<[Backend]>),
    /// It is answered with port unreachable: the service port has no endpoint at all.
    Reject,
    /// It is dropped: the policy is Local and no endpoint is local.
    Drop,
}

impl Outcome {
    /// The backends, if there are any.
    #[must_use]
    pub fn pool(&self) -> &[Backend] {
        match self {
            Outcome::Balance(pool) => pool,
            Outcome::Reject | Outcome::Drop => &[],
        }
    }
}

/// Everything that the kernel must hold for one frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// The service port that it belongs to, as `namespace/name:port`; the comment of its elements.
    pub label: Arc<str>,
    /// What happens to a new connection.
    pub outcome: Outcome,
    /// Its traffic is masqueraded, wherever it comes from.
    pub masquerade: bool,
}
