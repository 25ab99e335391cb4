//! Entry points for fuzzing with answers of an API server: see [`crate::commands::fuzz`].

use std::time::SystemTime;

use prost::bytes::Bytes;
use shunt_core::model::Change;

use super::content_type::ContentType;
use super::decoder::Decoder;
use super::failure::Failure;
use super::messages::Event;
use super::page::Items;
use super::{json, protobuf};
use crate::source::objects::{Encoded, Kind};

/// Returns what each decoder makes of these lines of a watch, or of this page of a list.
pub(crate) fn fuzz(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let lines = bytes.split(|byte| *byte == b'\n');
    let events: Vec<_> = lines.map(json::event).collect();
    let mut decoded = decode(events, &[], node_name);
    decoded.extend(page(ContentType::Json, bytes, node_name));
    decoded
}

/// Returns what each decoder makes of this frame of a watch, this page of a list, or this object.
pub(crate) fn fuzz_protobuf(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let of_page = page(ContentType::Protobuf, bytes, node_name);
    let bytes = Bytes::copy_from_slice(bytes);
    let _ = protobuf::status(bytes.clone());
    let events = vec![protobuf::event(bytes.clone())];
    let mut decoded = decode(events, &[Encoded::Protobuf(bytes)], node_name);
    decoded.extend(of_page);
    decoded
}

/// Returns what each decoder makes of the items of this page, which arrives in two parts.
fn page(content_type: ContentType, bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let of_kind = |kind| {
        let names = Default::default();
        let mut decoder = Decoder::new(kind, node_name.into(), names, SystemTime::UNIX_EPOCH);
        let mut items = Items::new(content_type);
        let mut changes = Vec::new();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        for part in [Some(first), Some(second), None] {
            let _ = match part {
                Some(part) => items.push(part).map(|()| true),
                None => items.complete(),
            };
            while let Ok(true) = items.advance() {
                let decoded = items.current().map(|object| decoder.take(&object));
                changes.extend(decoded.ok().and_then(Result::ok).flatten());
            }
        }
        let _ = items.end();
        changes.into_iter().map(|decoded| decoded.change).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}

fn decode(
    events: Vec<Result<Event<'_>, Failure>>,
    objects: &[Encoded<'_>],
    node_name: &str,
) -> Vec<Vec<Change>> {
    let of_kind = |kind| {
        let names = Default::default();
        let mut decoder = Decoder::new(kind, node_name.into(), names, SystemTime::UNIX_EPOCH);
        let mut decoded = Vec::new();
        for event in events.iter().flatten() {
            match event {
                Event::Current(object) => decoded.push(decoder.take(object)),
                Event::Gone(object) => decoded.push(decoder.take_gone(object)),
                Event::Bookmark(_) => {}
            }
        }
        decoded.extend(objects.iter().map(|object| decoder.take(object)));
        decoded.into_iter().flatten().flatten().map(|decoded| decoded.change).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}
