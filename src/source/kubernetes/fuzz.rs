//! Entry points for fuzzing with answers of an API server: see [`crate::fuzz`].

use std::time::SystemTime;

use shunt_core::model::Change;

use super::decoder::Decoder;
use super::messages::{Page, bookmark, event};
use crate::source::objects::Kind;

/// Returns what each decoder makes of these lines of a watch, or of this page of a list.
pub(crate) fn fuzz(bytes: &[u8], node_name: &str) -> Vec<Vec<Change>> {
    let of_kind = |kind| {
        let names = Default::default();
        let mut decoder = Decoder::new(kind, node_name.into(), names, SystemTime::UNIX_EPOCH);
        let mut decoded = Vec::new();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(event) = event(line) else { continue };
            match event.type_ {
                "ADDED" | "MODIFIED" => decoded.push(decoder.take(event.object)),
                "DELETED" => decoded.push(decoder.take_gone(event.object)),
                _ => _ = bookmark(&event),
            }
        }
        if let Ok(page) = serde_json::from_slice::<Page<'_>>(bytes) {
            let items = page.items.into_iter().flatten();
            decoded.extend(items.map(|item| decoder.take(item)));
        }
        decoded.into_iter().flatten().flatten().map(|decoded| decoded.change).collect()
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}
