//! Converts encoded objects: the JSON text or the protobuf message of one object.

use prost::bytes::Bytes;
use prost::{DecodeError, Message};
use serde::Deserialize;

use super::{Converted, Kind, Names, messages, raw};
use super::{endpoint_slice, node, service, service_cidr};
use crate::spanned_yaml::{self, FieldPath, typed};

/// A converted object, with the metadata that only sources need.
#[derive(Debug, PartialEq)]
pub struct Received {
    /// The object for the model.
    pub converted: Converted,
    /// The `resourceVersion`.
    pub version: String,
    /// The time of the change of a Pod or Service that changed the EndpointSlice.
    pub trigger: Option<jiff::Timestamp>,
}

/// The name and version of an object, readable whatever is wrong with the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.resourceVersion`.
    pub version: String,
}

/// Converts the JSON text of an object.
///
/// # Errors
/// If the text is not an object with fields of the right types.
pub fn from_json(kind: Kind, json: &str, names: &mut Names) -> Result<Received, serde_json::Error> {
    use serde_json::from_str;
    match kind {
        Kind::Service => from_str(json)
            .map(|raw: raw::Service<'_>| Received::new(service(&raw, names), &raw.metadata)),
        Kind::EndpointSlice => from_str(json).map(|raw: raw::EndpointSlice<'_>| {
            Received::new(endpoint_slice(&raw, names), &raw.metadata)
        }),
        Kind::Node => {
            from_str(json).map(|raw: raw::Node<'_>| Received::new(node(&raw, names), &raw.metadata))
        }
        Kind::ServiceCidr => from_str(json).map(|raw: raw::ServiceCidr<'_>| {
            Received::new(service_cidr(&raw, names), &raw.metadata)
        }),
    }
}

/// Converts the protobuf message of an object.
///
/// # Errors
/// If the message is not valid.
pub fn from_protobuf(
    kind: Kind,
    message: Bytes,
    names: &mut Names,
) -> Result<Received, DecodeError> {
    Ok(match kind {
        Kind::Service => {
            let message = messages::Service::decode(message)?;
            let raw = message.raw();
            Received::new(service(&raw, names), &raw.metadata)
        }
        Kind::EndpointSlice => {
            let message = messages::EndpointSlice::decode(message)?;
            let raw = message.raw();
            Received::new(endpoint_slice(&raw, names), &raw.metadata)
        }
        Kind::Node => {
            let message = messages::Node::decode(message)?;
            let raw = message.raw();
            Received::new(node(&raw, names), &raw.metadata)
        }
        Kind::ServiceCidr => {
            let message = messages::ServiceCidr::decode(message)?;
            let raw = message.raw();
            Received::new(service_cidr(&raw, names), &raw.metadata)
        }
    })
}

/// Returns the raw form of a protobuf message as JSON; none if the message is not valid.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn json_of_protobuf(kind: Kind, message: Bytes) -> Option<String> {
    use serde_json::to_string;
    let json = match kind {
        Kind::Service => to_string(&messages::Service::decode(message).ok()?.raw()),
        Kind::EndpointSlice => to_string(&messages::EndpointSlice::decode(message).ok()?.raw()),
        Kind::Node => to_string(&messages::Node::decode(message).ok()?.raw()),
        Kind::ServiceCidr => to_string(&messages::ServiceCidr::decode(message).ok()?.raw()),
    };
    json.ok()
}

impl Received {
    fn new(converted: Converted, metadata: &raw::Metadata<'_>) -> Received {
        let trigger = metadata.annotations.last_change_trigger_time.as_ref();
        Received {
            converted,
            version: metadata.resource_version.to_string(),
            trigger: trigger.and_then(|time| time.parse().ok()),
        }
    }
}

impl Identity {
    /// Reads the metadata of any object in JSON.
    ///
    /// # Errors
    /// If the object has no name, or the metadata is not valid.
    pub fn from_json(json: &str) -> Result<Identity, serde_json::Error> {
        let Bare { metadata } = serde_json::from_str(json)?;
        let BareMetadata { name, namespace, resource_version } = metadata;
        Ok(Identity { name, namespace, version: resource_version })
    }

    /// Reads the metadata of any object in protobuf, which need not be valid beyond it.
    ///
    /// # Errors
    /// If the metadata is not valid.
    pub fn from_protobuf(message: Bytes) -> Result<Identity, DecodeError> {
        let mut bare = messages::Bare::default();
        let merged = bare.merge(message);
        let metadata = bare.metadata();
        match merged {
            // The metadata is the first field, and its fields are in order: the namespace is between
            // these two.
            Err(error) if metadata.name.is_empty() || metadata.resource_version.is_empty() => {
                Err(error)
            }
            _ => Ok(Identity {
                name: metadata.name.to_string(),
                namespace: metadata.namespace.to_string(),
                version: metadata.resource_version.to_string(),
            }),
        }
    }
}

#[derive(Deserialize)]
struct Bare {
    metadata: BareMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BareMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    resource_version: String,
}

/// Finds the field with the wrong type by the slow parser, so that the message equals that for a
/// manifest.
#[must_use]
pub fn mistyped(kind: Kind, json: &str) -> (FieldPath, String) {
    let document = spanned_yaml::parse(json.as_bytes());
    let error = document.ok().as_deref().and_then(<[_]>::first).and_then(|node| match kind {
        Kind::Service => typed::<raw::Service<'_>>(node).err(),
        Kind::EndpointSlice => typed::<raw::EndpointSlice<'_>>(node).err(),
        Kind::Node => typed::<raw::Node<'_>>(node).err(),
        Kind::ServiceCidr => typed::<raw::ServiceCidr<'_>>(node).err(),
    });
    match error {
        Some(error) => (error.field, error.reason),
        None => (FieldPath::default(), "a field has the wrong type".to_owned()),
    }
}
