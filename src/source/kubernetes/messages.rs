//! Answers of the API server in JSON and protobuf: events of watches, rejections, and the envelope
//! around each object in protobuf.
//!
//! The numbers of fields are those of `generated.proto` in `k8s.io/apimachinery`. Protobuf that
//! cannot be decoded is a [`RequestFailure::Encoding`], after which requests ask for JSON.

use std::borrow::Cow;
use std::time::Duration;

use hyper::Response;
use kube::client::Body;
use prost::Message;
use prost::bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::body::Received;
use super::content_type::ContentType;
use super::failure::{MetaStatus, RequestFailure};
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

/// `meta.v1.WatchEvent` in protobuf.
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

/// `meta.v1.WatchEvent` in JSON.
#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type", default)]
    type_: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Encoded<'_> {
    /// Returns the failure of an answer with this object.
    pub(super) fn invalid(&self, reason: String) -> RequestFailure {
        match self {
            Encoded::Json(_) => RequestFailure::Garbage(reason),
            Encoded::Protobuf(_) => RequestFailure::Encoding(reason),
        }
    }

    fn status(&self) -> Result<MetaStatus, RequestFailure> {
        self.decode().map_err(|error| self.invalid(format!("a Status: {}", error.reason)))
    }
}

/// An event of a watch.
pub(super) enum EncodedEvent<'a> {
    /// An object was created or modified.
    Current(Encoded<'a>),
    /// An object was deleted.
    Gone(Encoded<'a>),
    /// Everything up to this version has been sent.
    Bookmark(String),
}

/// A reader of the events of a watch.
pub(super) struct Events {
    received: Received,
    piece: Bytes,
}

impl Events {
    pub(super) fn new(answer: Response<Body>) -> Events {
        Events { received: Received::new(answer, Duration::MAX), piece: Bytes::new() }
    }

    /// Returns the next event; none at the end of the watch. An event that reports a failure is
    /// one. Cancel-safe: a dropped future loses no data.
    pub(super) async fn next(&mut self) -> Result<Option<EncodedEvent<'_>>, RequestFailure> {
        // Returns its part of the buffer, so that the next bytes need no other buffer.
        self.piece = Bytes::new();
        let Some(piece) = self.received.piece().await? else { return Ok(None) };
        self.piece = piece;
        event(self.received.content_type, &self.piece).map(Some)
    }
}

/// Decodes a line or a frame of a watch.
pub(super) fn event(
    content_type: ContentType,
    piece: &Bytes,
) -> Result<EncodedEvent<'_>, RequestFailure> {
    let (type_, object) = match content_type {
        ContentType::Json => {
            let WatchLine { type_, object } =
                serde_json::from_slice(piece).map_err(|error| garbage(&error, piece))?;
            (Cow::Borrowed(type_), Encoded::Json(object.get()))
        }
        ContentType::Protobuf => {
            let WatchFrame { type_, object } = decode("an event", piece.clone())?;
            let type_ = String::from_utf8_lossy(&type_).into_owned();
            (type_.into(), Encoded::Protobuf(open(object.raw)?))
        }
    };
    match &*type_ {
        "ADDED" | "MODIFIED" => Ok(EncodedEvent::Current(object)),
        "DELETED" => Ok(EncodedEvent::Gone(object)),
        "BOOKMARK" => {
            let identity = object.metadata().map_err(|reason| object.invalid(reason))?;
            match identity.resource_version.is_empty() {
                true => {
                    Err(RequestFailure::Garbage("a bookmark without a resourceVersion".to_owned()))
                }
                false => Ok(EncodedEvent::Bookmark(identity.resource_version)),
            }
        }
        "ERROR" => Err(RequestFailure::from_status(&object.status()?, None)),
        other => Err(object.invalid(format!("an event of type {}", excerpt(other)))),
    }
}

/// Decodes the body of a rejection. A body that is not a Status becomes its message.
pub(super) fn status(content_type: ContentType, body: &Bytes) -> MetaStatus {
    let text = String::from_utf8_lossy(body);
    let object = match content_type {
        ContentType::Json => Ok(Encoded::Json(&text)),
        ContentType::Protobuf => open(body.clone()).map(Encoded::Protobuf),
    };
    let status = object.and_then(|object| object.status());
    status.unwrap_or_else(|_| MetaStatus { message: text.into_owned(), ..MetaStatus::default() })
}

/// Returns the object in an envelope.
fn open(mut bytes: Bytes) -> Result<Bytes, RequestFailure> {
    if !bytes.starts_with(MAGIC) {
        return Err(not_an_object(&bytes));
    }
    let unknown: Unknown = decode("an object", bytes.split_off(MAGIC.len()))?;
    Ok(unknown.raw)
}

/// Returns the failure for bytes that do not begin with [`MAGIC`].
pub(super) fn not_an_object(bytes: &[u8]) -> RequestFailure {
    let start = bytes.get(..MAGIC.len()).unwrap_or(bytes).escape_ascii();
    RequestFailure::Encoding(format!("an object that begins with \"{start}\""))
}

pub(super) fn decode<M: Message + Default>(what: &str, bytes: Bytes) -> Result<M, RequestFailure> {
    M::decode(bytes).map_err(|error| RequestFailure::Encoding(format!("{what}: {error}")))
}

/// Returns the failure for a text that is not what it should be.
pub(super) fn garbage(reason: &impl ToString, bytes: &[u8]) -> RequestFailure {
    let excerpt = excerpt(&String::from_utf8_lossy(bytes));
    RequestFailure::Garbage(format!("{excerpt} ({})", reason.to_string()))
}
