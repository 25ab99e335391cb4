//! Answers of the API server in protobuf: events of watches, rejections, and the envelope around each
//! object.
//!
//! The numbers of fields are those of `generated.proto` in `k8s.io/apimachinery`.

use std::time::Duration;

use hyper::Response;
use kube::client::Body;
use prost::Message;
use prost::bytes::Bytes;

use super::body::Received;
use super::failure::{Failure, Status};
use crate::source::objects::Encoded;
use crate::source::spanned_yaml::excerpt;

/// What each envelope begins with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`.
#[derive(Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

/// `meta.v1.WatchEvent`.
#[derive(Message)]
struct WatchFrame {
    #[prost(bytes = "bytes", tag = "1")]
    type_: Bytes,
    #[prost(message, required, tag = "2")]
    object: RawExtension,
}

#[derive(Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// An event of a watch.
pub(super) enum Event {
    /// An object was created or modified.
    Current(Encoded<'static>),
    /// An object was deleted.
    Gone(Encoded<'static>),
    /// Everything up to this version has been sent.
    Bookmark(String),
}

/// A reader of the events of a watch.
pub(super) struct Events(Received);

impl Events {
    pub(super) fn new(answer: Response<Body>) -> Events {
        Events(Received::new(answer, Duration::MAX))
    }

    /// Returns the next event; none at the end of the watch. An event that reports a failure is
    /// one. Cancel-safe: a dropped future loses no data.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        self.0.frame().await?.map(event).transpose()
    }
}

/// Decodes a frame of a watch.
pub(super) fn event(frame: Bytes) -> Result<Event, Failure> {
    let WatchFrame { type_, object } = decode("an event", frame)?;
    let object = Encoded::Protobuf(open(object.raw)?);
    match &*String::from_utf8_lossy(&type_) {
        "ADDED" | "MODIFIED" => Ok(Event::Current(object)),
        "DELETED" => Ok(Event::Gone(object)),
        "BOOKMARK" => {
            let identity = object.metadata().map_err(Failure::Garbage)?;
            match identity.resource_version.is_empty() {
                true => Err(Failure::Garbage("a bookmark without a resourceVersion".to_owned())),
                false => Ok(Event::Bookmark(identity.resource_version)),
            }
        }
        "ERROR" => Err(match object.decode() {
            Ok(status) => Failure::from_status(&status, None),
            Err(error) => Failure::Garbage(format!("a Status: {}", error.reason)),
        }),
        other => Err(Failure::Garbage(format!("an event of type {}", excerpt(other)))),
    }
}

/// Decodes the body of a rejection: in JSON, it may be by a proxy. A body that is not a Status becomes
/// its message.
pub(super) fn status(body: &Bytes) -> Status {
    let text = String::from_utf8_lossy(body);
    let object = open(body.clone()).map_or(Encoded::Json(&text), Encoded::Protobuf);
    let status = object.decode();
    status.unwrap_or_else(|_| Status { message: text.into_owned(), ..Status::default() })
}

/// Returns the object in an envelope.
fn open(mut bytes: Bytes) -> Result<Bytes, Failure> {
    if !bytes.starts_with(MAGIC) {
        return Err(not_an_object(&bytes));
    }
    let unknown: Unknown = decode("an object", bytes.split_off(MAGIC.len()))?;
    Ok(unknown.raw)
}

/// Returns the failure for bytes that do not begin with [`MAGIC`].
pub(super) fn not_an_object(bytes: &[u8]) -> Failure {
    let start = bytes.get(..MAGIC.len()).unwrap_or(bytes).escape_ascii();
    Failure::Garbage(format!("an object that begins with \"{start}\""))
}

pub(super) fn decode<M: Message + Default>(what: &str, bytes: Bytes) -> Result<M, Failure> {
    M::decode(bytes).map_err(|error| Failure::Garbage(format!("{what}: {error}")))
}
