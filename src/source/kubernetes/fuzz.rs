//! An entry point for fuzzing with answers of an API server: see [`crate::commands::fuzz`].

use std::time::SystemTime;

use hyper::Response;
use prost::bytes::Bytes;
use shunt_core::model::Change;

use super::decoder::Decoder;
use super::messages::{Event, event, status};
use super::page;
use crate::source::objects::{Encoded, Kind};

/// Returns what the decoder of each kind makes of these bytes: as an event of a watch, as an object,
/// and as a page of a list.
pub(crate) fn fuzz(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let whole = Bytes::copy_from_slice(bytes);
    let _ = status(&whole);
    // Its timer is never waited for: all bytes are there.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let of_kind = |kind| {
        let names = Default::default();
        let mut decoder = Decoder::new(kind, node_name.into(), names, SystemTime::UNIX_EPOCH);
        let mut decoded = match event(whole.clone()) {
            Ok(Event::Current(object)) => vec![decoder.take(&object)],
            Ok(Event::Gone(object)) => vec![decoder.take_gone(&object)],
            Ok(Event::Bookmark(_)) | Err(_) => Vec::new(),
        };
        decoded.push(decoder.take(&Encoded::Protobuf(whole.clone())));
        if let Ok(runtime) = &runtime {
            let answer = Response::new(bytes.to_vec().into());
            let page = page::read(answer, |object| decoded.push(decoder.take(object)));
            let _ = runtime.block_on(page);
        }
        decoded.into_iter().flatten().flatten().map(|converted| converted.into_change()).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}
