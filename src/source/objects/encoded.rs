//! Converts encoded objects: JSON or protobuf.

use prost::bytes::Bytes;
use prost::{DecodeError, Message};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Converted, Kind, Names, endpoint_slice, node, service, service_cidr};
use crate::source::spanned_yaml::{TypeError, typed};

/// An encoded object of any kind.
pub trait Encoded {
    /// The error for an object that is not of the form of its kind.
    type Error;

    /// Decodes the object.
    ///
    /// # Errors
    /// If a field has the wrong type.
    fn decode<T: Message + Default + DeserializeOwned>(self) -> Result<T, Self::Error>;
}

/// A JSON text.
impl Encoded for &str {
    type Error = TypeError;

    fn decode<T: DeserializeOwned>(self) -> Result<T, TypeError> {
        typed(self)
    }
}

/// A protobuf message.
impl Encoded for Bytes {
    type Error = DecodeError;

    fn decode<T: Message + Default>(self) -> Result<T, DecodeError> {
        T::decode(self)
    }
}

/// Converts an object.
///
/// # Errors
/// If it is not of the form of its kind.
pub fn convert<E: Encoded>(
    kind: Kind,
    object: E,
    names: &mut Names,
) -> Result<Converted, E::Error> {
    Ok(match kind {
        Kind::Service => service(&object.decode()?, names),
        Kind::EndpointSlice => endpoint_slice(&object.decode()?, names),
        Kind::Node => node(&object.decode()?, names),
        Kind::ServiceCidr => service_cidr(&object.decode()?, names),
    })
}

/// An object of any kind, readable whatever is wrong with the rest.
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

impl Identity {
    /// Reads the metadata of any object in JSON.
    ///
    /// # Errors
    /// If the metadata is not valid.
    pub fn from_json(json: &str) -> Result<Identity, serde_json::Error> {
        serde_json::from_str(json).map(|Bare { metadata }| metadata)
    }

    /// Reads the metadata of any object in protobuf, which need not be valid beyond it.
    ///
    /// # Errors
    /// If the metadata is not valid.
    pub fn from_protobuf(message: Bytes) -> Result<Identity, DecodeError> {
        let mut bare = Bare::default();
        let merged = bare.merge(message);
        // The metadata is the first field, and its fields are in order: the namespace is between
        // these two.
        match merged {
            Err(error)
                if bare.metadata.name.is_empty() || bare.metadata.resource_version.is_empty() =>
            {
                Err(error)
            }
            _ => Ok(bare.metadata),
        }
    }
}
