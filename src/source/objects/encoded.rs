//! Converts encoded objects: JSON or protobuf.

use prost::Message;
use prost::bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Converted, Key, Kind, Names, endpoint_slice, node, raw, service, service_cidr};
use crate::source::spanned_yaml::{Diagnostic, Severity, TypeError, typed};

/// An encoded object of any kind.
#[derive(Debug, Clone)]
pub enum Encoded<'a> {
    /// A JSON text.
    Json(&'a str),
    /// A protobuf message, without its envelope.
    Protobuf(Bytes),
}

impl Encoded<'_> {
    /// Decodes the object as a `T`.
    pub(in crate::source) fn decode<T: Message + Default + DeserializeOwned>(
        &self,
    ) -> Result<T, TypeError> {
        match self {
            Encoded::Json(json) => typed(json),
            Encoded::Protobuf(message) => T::decode(message.clone())
                .map_err(|error| TypeError { field: String::new(), reason: error.to_string() }),
        }
    }

    /// Reads the metadata, whatever is wrong with the rest.
    ///
    /// # Errors
    /// If the metadata is not valid.
    pub fn metadata(&self) -> Result<Identity, String> {
        let read = match self {
            Encoded::Json(json) => {
                serde_json::from_str::<Bare>(json).map_err(|error| error.to_string())
            }
            Encoded::Protobuf(message) => {
                let mut bare = Bare::default();
                match bare.merge(message.clone()) {
                    // They are first: what is wrong comes later.
                    Err(error) if bare.metadata.resource_version.is_empty() => {
                        Err(error.to_string())
                    }
                    _ => Ok(bare),
                }
            }
        };
        read.map(|bare| bare.metadata)
            .map_err(|error| format!("an object without valid metadata ({error})"))
    }

    /// Returns the key and the `resourceVersion`.
    ///
    /// # Errors
    /// If the metadata is not valid.
    pub fn identity(&self, kind: Kind, names: &mut Names) -> Result<(Key, String), String> {
        let Identity { name, namespace, resource_version } = self.metadata()?;
        if name.is_empty() {
            return Err("an object without a name".to_owned());
        }
        Ok((Key::named(kind, &namespace, &name, names), resource_version))
    }
}

/// Converts an object.
///
/// # Errors
/// If it is not of the form of its kind, and has no valid metadata either.
pub fn convert(kind: Kind, object: &Encoded<'_>, names: &mut Names) -> Result<Converted, String> {
    convert_completed(kind, object, names, |_| ())
}

/// Converts an object. `complete` adds to a Service what its text leaves out.
///
/// # Errors
/// As for [`convert`].
pub fn convert_completed(
    kind: Kind,
    object: &Encoded<'_>,
    names: &mut Names,
    complete: impl FnOnce(&mut raw::Service),
) -> Result<Converted, String> {
    let converted = match kind {
        Kind::Service => object.decode().map(|mut it| {
            complete(&mut it);
            service(&it, names)
        }),
        Kind::EndpointSlice => object.decode().map(|it| endpoint_slice(&it, names)),
        Kind::Node => object.decode().map(|it| node(&it, names)),
        Kind::ServiceCidr => object.decode().map(|it| service_cidr(&it, names)),
    };
    converted.or_else(|TypeError { field, reason }| {
        let (key, version) = object.identity(kind, names)?;
        let reason = format!("{reason} (the {kind} is left out)");
        let problem = Diagnostic::new(Severity::Error, field, reason).of_object(&key);
        Ok(Converted::refused(key, version, vec![problem]))
    })
}

/// An object of any kind.
#[derive(Deserialize, Message)]
struct Bare {
    #[prost(message, required, tag = "1")]
    metadata: Identity,
}

/// The name and version of an object.
#[derive(Clone, Deserialize, PartialEq, Eq, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct Identity {
    /// `metadata.name`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `metadata.namespace`.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// `metadata.resourceVersion`.
    #[prost(string, tag = "6")]
    pub resource_version: String,
}
