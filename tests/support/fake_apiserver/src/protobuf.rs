//! The protobuf encoding of objects, lists, events of watches and rejections, made of their JSON.
//!
//! The numbers of fields are those of `protobuf/fields.proto`, written down once more and not the
//! agent's. Whole objects with all their other fields come from kube-apiserver, in
//! `tests/api/encodings.rs`. Pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::Value;

use crate::object::Kind;

/// What each envelope begins with.
const MAGIC: &[u8] = b"k8s\0";

/// A field of a message: its number, its name in JSON, and the last word of its type.
type Field = (u32, &'static str, &'static str);

static MESSAGES: LazyLock<BTreeMap<&str, Vec<Field>>> = LazyLock::new(|| {
    let field = |line: &'static str| {
        let (field, number) = line.strip_suffix(';')?.split_once(" = ")?;
        let (holds, name) = field.rsplit_once(' ')?;
        Some((number.parse().ok()?, name, holds.rsplit(' ').next()?))
    };
    let messages = include_str!("protobuf/fields.proto").split("\nmessage ").skip(1);
    let named = messages.filter_map(|message| message.split_once(" {"));
    named.map(|(name, fields)| (name, fields.lines().filter_map(field).collect())).collect()
});

/// Encodes the body of an answer: a list, an object or a `Status`.
pub fn body(kind: Kind, json: &Value) -> Vec<u8> {
    if json["kind"] == "Status" {
        return envelope("v1", "Status", message("Status", json));
    }
    let Some(items) = json["items"].as_array() else {
        return envelope(kind.api_version(), kind.as_str(), object(kind, json));
    };
    let mut list = bytes(1, &message("ListMeta", &json["metadata"]));
    items.iter().for_each(|item| list.extend(bytes(2, &object(kind, item))));
    envelope(kind.api_version(), &format!("{kind}List"), list)
}

/// Encodes an event of a watch, with the length before it.
pub fn frame(kind: Kind, event: &Value) -> Vec<u8> {
    let type_ = event["type"].as_str().unwrap_or_default();
    let object = bytes(1, &body(kind, &event["object"]));
    let event = [text(1, type_), bytes(2, &object)].concat();
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), &event[..]].concat()
}

/// Encodes an object without an envelope. A field of a wrong type has a wrong type in it, too.
pub fn object(kind: Kind, json: &Value) -> Vec<u8> {
    message(kind.as_str(), json)
}

/// Puts an encoded object into its envelope, a `runtime.Unknown`.
pub fn envelope(api_version: &str, kind: &str, raw: Vec<u8>) -> Vec<u8> {
    let type_meta = [text(1, api_version), text(2, kind)].concat();
    // Go writes texts that are empty.
    [MAGIC, &bytes(1, &type_meta), &bytes(2, &raw), &bytes(3, b""), &bytes(4, b"")].concat()
}

fn message(name: &str, json: &Value) -> Vec<u8> {
    let mut message = Vec::new();
    for &(number, name, holds) in &MESSAGES[name] {
        match &json[name] {
            Value::Array(values) => {
                values.iter().for_each(|value| message.extend(field(number, holds, value)));
            }
            value => message.extend(field(number, holds, value)),
        }
    }
    message
}

fn field(number: u32, holds: &str, json: &Value) -> Vec<u8> {
    match (holds, json) {
        (_, Value::Null) => Vec::new(),
        // `map<string, string>`.
        ("string>", Value::Object(entries)) => {
            let entry = |(name, value): (&String, &Value)| {
                bytes(number, &[text(1, name), field(2, "string", value)].concat())
            };
            entries.iter().flat_map(entry).collect()
        }
        (name, Value::Object(_)) if MESSAGES.contains_key(name) => {
            bytes(number, &message(name, json))
        }
        ("Time", Value::String(time)) => {
            let seconds = time.parse().map(jiff::Timestamp::as_second);
            seconds.map_or(varint(number, 1), |seconds| bytes(number, &varint(1, seconds)))
        }
        (_, Value::String(value)) => text(number, value),
        (_, Value::Number(value)) => varint(number, value.as_i64().unwrap_or(i64::MAX)),
        (_, value) => varint(number, (*value == true).into()),
    }
}

fn text(number: u32, text: &str) -> Vec<u8> {
    bytes(number, text.as_bytes())
}

fn bytes(number: u32, content: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut field);
    encode_varint(content.len() as u64, &mut field);
    [&field, content].concat()
}

fn varint(number: u32, value: i64) -> Vec<u8> {
    let mut field = Vec::new();
    encode_key(number, WireType::Varint, &mut field);
    encode_varint(value as u64, &mut field);
    field
}
