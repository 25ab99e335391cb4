//! Kubernetes objects in their API form ([`raw`]), and their conversion into the model's values.
//!
//! Pure. Every source uses these conversions, so that the same object has the same meaning in a
//! manifest and in an API server. No content of an object makes a conversion fail as a whole: it
//! returns [`Diagnostic`]s beside the usable parts.

mod diagnostics;
mod encoded;
mod names;
mod node;
pub mod raw;
mod service;
mod service_cidr;
mod slice;
mod values;

use std::fmt;

use shunt_core::model::{Change, Ignored, ObjectName};

use crate::source::spanned_yaml::{Diagnostic, Severity};

pub use shunt_core::model::Kind;

pub use encoded::{Encoded, Identity, convert, convert_completed};
pub use names::Names;
use node::node;
use service::service;
use service_cidr::service_cidr;
use slice::endpoint_slice;

/// An annotation of shunt's, in a domain that the project does not own yet: see ROADMAP.md.
macro_rules! annotation {
    ($name:literal) => {
        concat!("shunt.dev/", $name)
    };
}

/// The annotation of a Service that chooses its load balancing.
const LOAD_BALANCING: &str = annotation!("load-balancing");
/// The annotation of an EndpointSlice with the weight of its endpoints.
const WEIGHT: &str = annotation!("weight");

/// The identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind of the object.
    pub kind: Kind,
    /// The name; its namespace is empty for kinds without one.
    pub name: ObjectName,
}

impl Key {
    /// Returns the change that deletes the object.
    #[must_use]
    pub fn gone(&self) -> Change {
        Change::Gone(self.kind, self.name.clone())
    }

    /// Returns the key of an object. Without a namespace, it is in `default`.
    pub fn named(kind: Kind, namespace: &str, name: &str, names: &mut Names) -> Key {
        let namespace = match (kind.is_namespaced(), namespace) {
            (false, _) => "",
            (true, "") => "default",
            (true, namespace) => namespace,
        };
        Key { kind, name: ObjectName::new(names.get(namespace), names.get(name)) }
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

/// The result of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The identity of the object.
    pub key: Key,
    /// The `resourceVersion`.
    pub version: String,
    /// The time of the change of a Pod or Service that changed the EndpointSlice.
    pub trigger: Option<jiff::Timestamp>,
    /// The object for the model, or why shunt ignores a Service. `None` for an EndpointSlice without
    /// use, and for other kinds if they are invalid: then a known object of this name is deleted.
    pub change: Option<Change>,
    /// The problems. An object with a [`Severity::Error`] is not used at all.
    pub problems: Vec<Diagnostic>,
}

impl Converted {
    /// Returns the result for an invalid object. Its problems have at least one error.
    pub(crate) fn refused(key: Key, version: String, problems: Vec<Diagnostic>) -> Converted {
        let error = problems.iter().find(|problem| problem.severity == Severity::Error);
        let change = match (key.kind, error) {
            (Kind::Service, Some(error)) if !key.name.name.is_empty() => {
                let reason = Ignored::Invalid(error.to_string().into());
                Some(Change::ServiceIgnored(key.name.clone(), reason))
            }
            _ => None,
        };
        Converted { key, version, trigger: None, change, problems }
    }

    /// Returns true if the object is left out because of an error.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Returns the change for the store: the object, or its deletion.
    #[must_use]
    pub fn into_change(self) -> Change {
        self.change.unwrap_or_else(|| self.key.gone())
    }
}

#[cfg(test)]
mod tests;
