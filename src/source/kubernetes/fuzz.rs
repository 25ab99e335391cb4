//! Entry points for fuzzing with answers of an API server: see [`crate::fuzz`].

use std::time::SystemTime;

use shunt_core::model::Change;

use super::decoder::Decoder;
use super::failure::Failure;
use super::json;
use super::messages::{Event, Page};
use crate::source::objects::Kind;

/// Returns what each decoder makes of these lines of a watch, or of this page of a list.
pub(crate) fn fuzz(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let lines = bytes.split(|byte| *byte == b'\n');
    let events: Vec<_> = lines.map(json::event).collect();
    decode(events, json::page(bytes), node_name)
}

fn decode(
    events: Vec<Result<Event<'_>, Failure>>,
    page: Result<Page<'_>, Failure>,
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
        decoded.extend(items.map(|object| decoder.take(object)));
        decoded.into_iter().flatten().flatten().map(|decoded| decoded.change).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}
