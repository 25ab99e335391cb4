//! Objects: their kinds, and how they are read from manifests.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The kinds of objects that the agent reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Of `v1`.
    Node,
    /// Of `networking.k8s.io/v1`.
    ServiceCidr,
    /// Of `v1`.
    Service,
    /// Of `discovery.k8s.io/v1`.
    EndpointSlice,
    /// Of `events.k8s.io/v1`.
    Event,
}

impl Kind {
    /// All of them, in an order in which they can be made.
    pub const ALL: [Self; 5] =
        [Self::Node, Self::ServiceCidr, Self::Service, Self::EndpointSlice, Self::Event];

    /// Its names in the fields `kind` and `apiVersion`, and in paths.
    const fn names(self) -> [&'static str; 3] {
        match self {
            Self::Node => ["Node", "v1", "nodes"],
            Self::ServiceCidr => ["ServiceCIDR", "networking.k8s.io/v1", "servicecidrs"],
            Self::Service => ["Service", "v1", "services"],
            Self::EndpointSlice => ["EndpointSlice", "discovery.k8s.io/v1", "endpointslices"],
            Self::Event => ["Event", "events.k8s.io/v1", "events"],
        }
    }

    /// The name as in the field `kind`.
    pub fn as_str(self) -> &'static str {
        self.names()[0]
    }

    /// The group and version as in the field `apiVersion`.
    pub fn api_version(self) -> &'static str {
        self.names()[1]
    }

    /// The name as in paths.
    pub fn plural(self) -> &'static str {
        self.names()[2]
    }

    /// Whether objects of this kind live in a namespace.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Self::Service | Self::EndpointSlice | Self::Event)
    }

    /// The path of the group and version, such as `/apis/discovery.k8s.io/v1`.
    pub fn root(self) -> String {
        let version = self.api_version();
        if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") }
    }

    /// The path of all objects of this kind.
    pub fn path(self) -> String {
        format!("{}/{}", self.root(), self.plural())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What identifies an object. The order is that of lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Empty for kinds without namespaces.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// An object in the namespace `default`, or in none if its kind has none.
    pub fn new(kind: Kind, name: &str) -> Self {
        let namespace = if kind.is_namespaced() { "default" } else { "" };
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The key of an object; an error if it is none that we know.
    pub fn of(object: &Value) -> Result<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let (kind, version) = (text("/kind"), text("/apiVersion"));
        let known = Kind::ALL
            .into_iter()
            .find(|known| kind == Some(known.as_str()) && version == Some(known.api_version()));
        let Some(kind) = known else { bail!("no object that an API server has: {object}") };
        let name = text("/metadata/name").with_context(|| format!("without a name: {object}"))?;
        let mut key = Self::new(kind, name);
        if let (true, Some(namespace)) = (kind.is_namespaced(), text("/metadata/namespace")) {
            key.namespace = namespace.to_owned();
        }
        Ok(key)
    }

    /// The path of the object.
    pub fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    /// The path of all objects of its kind and namespace.
    pub fn collection(&self) -> String {
        let Self { kind, namespace, .. } = self;
        if namespace.is_empty() {
            kind.path()
        } else {
            format!("{}/namespaces/{namespace}/{}", kind.root(), kind.plural())
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() {
            write!(f, "{kind} {name}")
        } else {
            write!(f, "{kind} {namespace}/{name}")
        }
    }
}

/// The objects in a text of YAML documents.
pub(crate) fn parse(manifest: &str) -> Result<Vec<Value>> {
    let head = || manifest.lines().take(20).collect::<Vec<_>>().join("\n");
    serde_saphyr::from_multiple(manifest).with_context(|| format!("not YAML:\n{}", head()))
}
