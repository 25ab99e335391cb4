//! Kubernetes objects: as they are written ([`raw`]), and how they become the model's values.
//!
//! Pure. Every source goes through here, so that a manifest and an API server mean the same by the
//! same object. Nothing that an object holds can make a conversion fail as a whole: what is wrong
//! comes back as [`Diagnostic`]s beside what can be used.

mod diagnostics;
mod names;
mod node;
pub mod raw;
mod service;
mod service_cidr;
mod slice;
mod values;

use std::fmt;

use shunt_core::model::{Change, ObjectName};

use crate::spanned_yaml::{Diagnostic, Severity};

pub use names::Names;
pub use node::node;
pub use service::service;
pub use service_cidr::service_cidr;
pub use slice::endpoint_slice;

/// The kinds of objects that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `Service` of `v1`.
    Service,
    /// `EndpointSlice` of `discovery.k8s.io/v1`.
    EndpointSlice,
    /// `Node` of `v1`.
    Node,
    /// `ServiceCIDR` of `networking.k8s.io/v1` or `v1beta1`.
    ServiceCidr,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

    /// The name as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
            Kind::ServiceCidr => "ServiceCIDR",
        }
    }

    /// The plural that the API has in its paths.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Kind::Service => "services",
            Kind::EndpointSlice => "endpointslices",
            Kind::Node => "nodes",
            Kind::ServiceCidr => "servicecidrs",
        }
    }

    /// True if objects of this kind live in a namespace.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        matches!(self, Kind::Service | Kind::EndpointSlice)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What identifies an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its name; the namespace is empty for kinds without.
    pub name: ObjectName,
}

impl Key {
    /// The change that says that the object is gone.
    #[must_use]
    pub fn gone(&self) -> Change {
        match self.kind {
            Kind::Service => Change::ServiceGone(self.name.clone()),
            Kind::EndpointSlice => Change::SliceGone(self.name.clone()),
            Kind::Node => Change::NodeGone,
            Kind::ServiceCidr => Change::ServiceCidrGone(self.name.name.clone()),
        }
    }

    /// The key of the object with this `metadata`.
    pub fn named(kind: Kind, metadata: &raw::Metadata, names: &mut Names) -> Key {
        let namespace = match (kind.is_namespaced(), &*metadata.namespace) {
            (false, _) => "",
            (true, "") => "default",
            (true, namespace) => namespace,
        };
        Key { kind, name: ObjectName::new(names.get(namespace), names.get(&metadata.name)) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name.name)
        } else {
            write!(f, "{} {}", self.kind, self.name)
        }
    }
}

/// What became of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// Which object it is.
    pub key: Key,
    /// The object as the model sees it. None if it is none of ours (headless, another proxy's, …) or
    /// so wrong that it cannot be used: if it was known before, it is now gone.
    pub change: Option<Change>,
    /// What is wrong with it. One [`Severity::Error`] and it is not used at all.
    pub problems: Vec<Diagnostic>,
}

impl Converted {
    /// True if the object is left out because of an error, not because it is none of ours.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// What to tell the store: the object, or that it is gone.
    #[must_use]
    pub fn into_change(self) -> Change {
        self.change.unwrap_or_else(|| self.key.gone())
    }
}

#[cfg(test)]
mod tests;
