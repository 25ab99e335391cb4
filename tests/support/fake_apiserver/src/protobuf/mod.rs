//! The protobuf encoding of objects, lists, events of watches and rejections, made of their JSON.
//!
//! The messages have the fields of `generated.proto` in `k8s.io/api` and `k8s.io/apimachinery` for
//! the objects that tests use, many more than the agent reads. As in Go, fields that are no
//! pointers are written even if they are empty. Pure.

mod messages;

use prost::Message;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::object::Kind;

use messages::{
    Bare, EndpointSlice, Event, List, ListMeta, Node, RawExtension, Service, ServiceCidr, Status,
    TypeMeta, Unknown, WatchEvent,
};

/// What each envelope begins with.
const MAGIC: &[u8] = b"k8s\0";
/// A field 2 that is a number: in all kinds it is a message.
const MISTYPED: &[u8] = &[2 << 3, 7];

/// Encodes the body of an answer: a list, an object or a `Status`.
pub fn body(kind: Kind, json: &Value) -> Vec<u8> {
    if json["kind"] == "Status" {
        return envelope("v1", "Status", status(json));
    }
    let Some(items) = json["items"].as_array() else {
        return envelope(kind.api_version(), kind.as_str(), object(kind, json));
    };
    let metadata: ListMeta = read(&json["metadata"]).unwrap_or_default();
    let items = items.iter().map(|item| object(kind, item)).collect();
    let list = List { metadata, items }.encode_to_vec();
    envelope(kind.api_version(), &format!("{kind}List"), list)
}

/// Encodes an event of a watch, with the length before it.
pub fn frame(kind: Kind, event: &Value) -> Vec<u8> {
    let type_ = event["type"].as_str().unwrap_or_default().to_owned();
    let raw = body(kind, &event["object"]);
    let event = WatchEvent { type_, object: RawExtension { raw } }.encode_to_vec();
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), &event[..]].concat()
}

/// Encodes an object without an envelope. Of an object whose fields have wrong types, as no API
/// server has it, the metadata is right and the next field has a wrong type, too.
pub fn object(kind: Kind, json: &Value) -> Vec<u8> {
    let encoded = match kind {
        Kind::Service => read::<Service>(json).map(|message| message.encode_to_vec()),
        Kind::EndpointSlice => read::<EndpointSlice>(json).map(|message| message.encode_to_vec()),
        Kind::Node => read::<Node>(json).map(|message| message.encode_to_vec()),
        Kind::ServiceCidr => read::<ServiceCidr>(json).map(|message| message.encode_to_vec()),
        Kind::Event => read::<Event>(json).map(|message| message.encode_to_vec()),
    };
    encoded.unwrap_or_else(|| {
        let bare: Bare = read(json).unwrap_or_default();
        [&bare.encode_to_vec(), MISTYPED].concat()
    })
}

/// Puts an encoded object into its envelope.
pub fn envelope(api_version: &str, kind: &str, raw: Vec<u8>) -> Vec<u8> {
    let type_meta = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let unknown = Unknown { type_meta, raw, ..Unknown::default() };
    [MAGIC, &unknown.encode_to_vec()].concat()
}

fn status(json: &Value) -> Vec<u8> {
    read::<Status>(json).unwrap_or_default().encode_to_vec()
}

fn read<T: DeserializeOwned>(json: &Value) -> Option<T> {
    serde_json::from_value(without_nulls(json)).ok()
}

/// Removes fields that are `null`, which Go takes as absent.
fn without_nulls(json: &Value) -> Value {
    match json {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}
