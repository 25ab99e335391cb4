//! The JSON of answers: events of watches, rejections.

use kube::core::Status;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::messages::Event;
use crate::source::objects::Encoded;
use crate::source::spanned_yaml::excerpt;

#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type", default)]
    type_: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Parses a line of a watch. An event that reports a failure is one.
pub(super) fn event(line: &[u8]) -> Result<Event<'_>, Failure> {
    let WatchEvent { type_, object } =
        serde_json::from_slice(line).map_err(|error| garbage(&error, line))?;
    let json = object.get();
    let failed = |error| garbage(&error, json.as_bytes());
    match type_ {
        "ADDED" | "MODIFIED" => Ok(Event::Current(Encoded::Json(json))),
        "DELETED" => Ok(Event::Gone(Encoded::Json(json))),
        "BOOKMARK" => Event::bookmark(&Encoded::Json(json)),
        "ERROR" => Err(Failure::from_status(&serde_json::from_str(json).map_err(failed)?, None)),
        other => Err(Failure::Garbage(format!("an event of type {}", excerpt(other)))),
    }
}

/// Parses the body of a rejection.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    serde_json::from_slice(body).ok()
}

fn garbage(error: &serde_json::Error, bytes: &[u8]) -> Failure {
    Failure::Garbage(format!("{} ({error})", excerpt(&String::from_utf8_lossy(bytes))))
}
