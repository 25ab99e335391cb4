//! The envelopes of objects: events of watches, pages of lists.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;
use crate::source::objects::raw;
use crate::spanned_yaml::excerpt;

/// An event of a watch.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", default)]
    pub(super) type_: &'a str,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct Page<'a> {
    #[serde(default)]
    pub(super) metadata: PageMetadata,
    #[serde(borrow, default)]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bookmark {
    metadata: raw::Metadata,
}

/// Parses a line of a watch.
pub(super) fn event(line: &[u8]) -> Result<Event<'_>, Failure> {
    serde_json::from_slice(line).map_err(|error| garbage(&error, line))
}

/// Returns the version in a bookmark, and whether it ends a streamed list. Events other than
/// bookmarks are failures.
pub(super) fn bookmark(event: &Event<'_>) -> Result<(String, bool), Failure> {
    let json = event.object.get();
    let failed = |error| garbage(&error, json.as_bytes());
    match event.type_ {
        "BOOKMARK" => {
            let Bookmark { metadata } = serde_json::from_str(json).map_err(failed)?;
            if metadata.resource_version.is_empty() {
                return Err(Failure::Garbage("a bookmark without a resourceVersion".to_owned()));
            }
            Ok((metadata.resource_version, metadata.annotations.initial_events_end.is_some()))
        }
        "ERROR" => Err(Failure::from_status(&serde_json::from_str(json).map_err(failed)?, None)),
        other => Err(Failure::Garbage(format!("an event of type {}", excerpt(other)))),
    }
}

pub(super) fn garbage(error: &serde_json::Error, bytes: &[u8]) -> Failure {
    Failure::Garbage(format!("{} ({error})", excerpt(&String::from_utf8_lossy(bytes))))
}
