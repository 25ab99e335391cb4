//! Changes of objects, and what is to be planned again after them.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{ArrivalSet, EndpointSlice, Ignored, Kind, Node, ObjectName, Service};

/// A change from a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A Service is new or has changed.
    Service(Arc<Service>),
    /// A Service exists, but shunt does not implement it.
    ServiceIgnored(ObjectName, Ignored),
    /// An EndpointSlice is new or has changed.
    Slice(Arc<EndpointSlice>),
    /// The current state of the agent's Node. Boxed, as the largest: a list has thousands of other
    /// changes.
    Node(Box<Node>),
    /// The last state of the agent's Node as of an earlier agent, in effect until the source has
    /// sent the Node.
    NodeRemembered(Box<Node>),
    /// A ServiceCIDR is new or has changed: its name and prefixes.
    ServiceCidr(ObjectName, Vec<IpNet>),
    /// An object is deleted, or shunt no longer uses it. The last state of the agent's Node stays in
    /// effect; whatever its name is, there is only one.
    Gone(Kind, ObjectName),
    /// The source has listed all objects of a kind, with these names: all others are deleted.
    Listed(Kind, Arc<HashSet<ObjectName>>),
    /// All current addresses of the node's interfaces, including loopback.
    InterfaceAddresses(BTreeSet<IpAddr>),
    /// The source has listed all kinds once: programming may begin.
    Synced,
}

impl Change {
    /// Returns the change for a new or changed Service.
    #[must_use]
    pub fn service(service: impl Into<Arc<Service>>) -> Change {
        Change::Service(service.into())
    }

    /// Returns the change for the current state of the agent's Node.
    #[must_use]
    pub fn node(node: impl Into<Box<Node>>) -> Change {
        Change::Node(node.into())
    }

    /// Returns the change for a new or changed EndpointSlice.
    #[must_use]
    pub fn slice(slice: impl Into<Arc<EndpointSlice>>) -> Change {
        Change::Slice(slice.into())
    }
}

/// The Services to plan again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    /// The Services whose service ports may have changed.
    pub services: ArrivalSet<ObjectName>,
    /// True if a common input of all Services has changed: the Node, the ServiceCIDRs, the
    /// interface addresses.
    pub node_context: bool,
}

impl Dirty {
    /// Returns true if there is nothing to plan again.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node_context
    }
}
