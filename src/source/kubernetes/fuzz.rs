//! Entry points for fuzzing with answers of an API server: see [`crate::commands::fuzz`].

use std::time::SystemTime;

use hyper::Response;
use hyper::header::CONTENT_TYPE;
use prost::bytes::Bytes;
use shunt_core::model::Change;

use super::content_type::ContentType;
use super::decoder::Decoder;
use super::failure::Failure;
use super::messages::{Event, event, status};
use super::page;
use crate::source::objects::{Encoded, Kind};

/// Returns what each decoder makes of these lines of a watch, or of this page of a list.
pub(crate) fn fuzz(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let lines: Vec<Bytes> =
        bytes.split(|byte| *byte == b'\n').map(Bytes::copy_from_slice).collect();
    let events = lines.iter().map(|line| event(ContentType::Json, line)).collect();
    let mut decoded = decode(events, &[], node_name);
    decoded.extend(of_page(ContentType::Json, bytes, node_name));
    decoded
}

/// Returns what each decoder makes of this frame of a watch, this page of a list, or this object.
pub(crate) fn fuzz_protobuf(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let of_page = of_page(ContentType::Protobuf, bytes, node_name);
    let bytes = Bytes::copy_from_slice(bytes);
    let _ = status(ContentType::Protobuf, &bytes);
    let events = vec![event(ContentType::Protobuf, &bytes)];
    let mut decoded = decode(events, &[Encoded::Protobuf(bytes.clone())], node_name);
    decoded.extend(of_page);
    decoded
}

/// Returns what each decoder makes of the items of this page.
fn of_page(content_type: ContentType, bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    // Its timer is never waited for: all bytes are there.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
        return Vec::new();
    };
    let of_kind = |kind| {
        let names = Default::default();
        let mut decoder = Decoder::new(kind, node_name.into(), names, SystemTime::UNIX_EPOCH);
        let mut changes = Vec::new();
        let mut answer = Response::new(bytes.to_vec().into());
        if let Ok(value) = content_type.as_str().parse() {
            answer.headers_mut().insert(CONTENT_TYPE, value);
        }
        let _ = runtime.block_on(page::read(answer, |object| {
            changes.extend(decoder.take(object).ok().flatten());
        }));
        changes.into_iter().map(|converted| converted.into_change()).collect()
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
        decoded.into_iter().flatten().flatten().map(|converted| converted.into_change()).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}
