//! An entry point for fuzzing with answers of an API server: see [`crate::commands::fuzz`].

use std::time::SystemTime;

use hyper::Response;
use hyper::header::CONTENT_TYPE;
use prost::bytes::Bytes;
use shunt_core::model::Change;

use super::content_type::ContentType;
use super::decoder::Decoder;
use super::messages::{EncodedEvent, event, status};
use super::page;
use crate::source::objects::{Encoded, Kind};

/// Returns what the decoder of each kind makes of these bytes: as an event or the lines of a watch,
/// as an object, and as a page of a list.
pub(crate) fn fuzz(content_type: ContentType, bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let whole = Bytes::copy_from_slice(bytes);
    let text = String::from_utf8_lossy(bytes);
    let (pieces, object) = match content_type {
        ContentType::Json => {
            let lines = bytes.split(|byte| *byte == b'\n');
            (lines.map(Bytes::copy_from_slice).collect(), Encoded::Json(&text))
        }
        ContentType::Protobuf => (vec![whole.clone()], Encoded::Protobuf(whole.clone())),
    };
    let _ = status(content_type, &whole);
    // Its timer is never waited for: all bytes are there.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let of_kind = |kind| {
        let names = Default::default();
        let mut decoder = Decoder::new(kind, node_name.into(), names, SystemTime::UNIX_EPOCH);
        let mut decoded = Vec::new();
        for event in pieces.iter().flat_map(|piece| event(content_type, piece)) {
            match event {
                EncodedEvent::Current(object) => decoded.push(decoder.take(&object)),
                EncodedEvent::Gone(object) => decoded.push(decoder.take_gone(&object)),
                EncodedEvent::Bookmark(_) => {}
            }
        }
        decoded.push(decoder.take(&object));
        let mut answer = Response::new(bytes.to_vec().into());
        if let Ok(value) = content_type.as_str().parse() {
            answer.headers_mut().insert(CONTENT_TYPE, value);
        }
        if let Ok(runtime) = &runtime {
            let page = page::read(answer, |object| decoded.push(decoder.take(object)));
            let _ = runtime.block_on(page);
        }
        decoded.into_iter().flatten().flatten().map(|converted| converted.into_change()).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}
