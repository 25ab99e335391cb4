//! Entry points for fuzzing with answers of an API server: see [`crate::fuzz`].

use std::time::SystemTime;

use prost::bytes::Bytes;
use shunt_core::model::Change;

use super::decoder::Decoder;
use super::failure::Failure;
use super::messages::{Event, Object, Page};
use super::{json, protobuf};
use crate::source::objects::{self, Kind, Names};

/// Returns what each decoder makes of these lines of a watch, or of this page of a list.
pub(crate) fn fuzz(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let lines = bytes.split(|byte| *byte == b'\n');
    let events: Vec<_> = lines.map(json::event).collect();
    decode(events, json::page(bytes), &[], node_name)
}

/// Returns what each decoder makes of this frame of a watch, this page of a list, or this object.
pub(crate) fn fuzz_protobuf(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let bytes = Bytes::copy_from_slice(bytes);
    let _ = protobuf::status(bytes.clone());
    let events = vec![protobuf::event(bytes.clone())];
    decode(events, protobuf::page(bytes.clone()), &[Object::Protobuf(bytes)], node_name)
}

/// Decodes an object in protobuf, writes its raw form as JSON, and decodes that.
///
/// # Panics
/// If the two results differ.
pub(crate) fn fuzz_both(bytes: &[u8]) {
    for kind in Kind::ALL {
        let Some(json) = objects::json_of_protobuf(kind, Bytes::copy_from_slice(bytes)) else {
            continue;
        };
        let names = &mut Names::new();
        let Ok(of_protobuf) = objects::from_protobuf(kind, Bytes::copy_from_slice(bytes), names)
        else {
            continue;
        };
        let of_json = objects::from_json(kind, &json, names);
        assert_eq!(of_json.ok().as_ref(), Some(&of_protobuf), "{kind} as JSON: {json}");
    }
}

fn decode(
    events: Vec<Result<Event<'_>, Failure>>,
    page: Result<Page<'_>, Failure>,
    objects: &[Object<'_>],
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
                Event::Bookmark { .. } => {}
            }
        }
        let items = page.iter().flat_map(|page| &page.items);
        decoded.extend(items.chain(objects).map(|object| decoder.take(object)));
        decoded.into_iter().flatten().flatten().map(|decoded| decoded.change).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}
