//! The protobuf of answers: events of watches, rejections, and the envelope around each object.
//!
//! The numbers of fields are those of `generated.proto` in `k8s.io/apimachinery`. Whatever cannot
//! be decoded is a [`Failure::Encoding`], after which requests ask for JSON.

use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};
use prost::Message;
use prost::bytes::Bytes;

use super::failure::Failure;
use super::messages::Event;
use crate::source::objects::Encoded;
use crate::source::spanned_yaml::excerpt;

/// What each envelope begins with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`.
#[derive(Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
    #[prost(string, tag = "3")]
    content_encoding: String,
}

/// `meta.v1.WatchEvent`.
#[derive(Message)]
struct WatchEvent {
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

/// `meta.v1.Status`.
#[derive(Message)]
struct StatusMessage {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<Details>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Message)]
struct Details {
    #[prost(message, repeated, tag = "4")]
    causes: Vec<Cause>,
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
}

#[derive(Message)]
struct Cause {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(string, tag = "3")]
    field: String,
}

/// Decodes a frame of a watch. An event that reports a failure is one.
pub(super) fn event(frame: Bytes) -> Result<Event<'static>, Failure> {
    let WatchEvent { type_, object } = decode("an event", frame)?;
    let object = open(object.raw)?;
    match &*type_ {
        b"ADDED" | b"MODIFIED" => Ok(Event::Current(Encoded::Protobuf(object))),
        b"DELETED" => Ok(Event::Gone(Encoded::Protobuf(object))),
        b"BOOKMARK" => Event::bookmark(&Encoded::Protobuf(object)),
        b"ERROR" => Err(Failure::from_status(&decode_status(object)?, None)),
        other => {
            let other = excerpt(&String::from_utf8_lossy(other));
            Err(Failure::Encoding(format!("an event of type {other}")))
        }
    }
}

/// Decodes the body of a rejection.
pub(super) fn status(body: Bytes) -> Option<Status> {
    open(body).and_then(decode_status).ok()
}

/// Returns the object in an envelope.
fn open(mut bytes: Bytes) -> Result<Bytes, Failure> {
    if !bytes.starts_with(MAGIC) {
        return Err(not_an_object(&bytes));
    }
    let unknown: Unknown = decode("an object", bytes.split_off(MAGIC.len()))?;
    if !unknown.content_encoding.is_empty() {
        return Err(unknown_encoding(&unknown.content_encoding));
    }
    Ok(unknown.raw)
}

/// Returns the failure for bytes that do not begin with [`MAGIC`].
pub(super) fn not_an_object(bytes: &[u8]) -> Failure {
    let start = bytes.get(..MAGIC.len()).unwrap_or(bytes).escape_ascii();
    Failure::Encoding(format!("an object that begins with \"{start}\""))
}

/// Returns the failure for an envelope whose object is encoded once more.
pub(super) fn unknown_encoding(encoding: &str) -> Failure {
    Failure::Encoding(format!("an object with contentEncoding {}", excerpt(encoding)))
}

fn decode_status(message: Bytes) -> Result<Status, Failure> {
    let status: StatusMessage = decode("a Status", message)?;
    let mut known = Status::failure(&status.message, &status.reason);
    known.code = u16::try_from(status.code).unwrap_or_default();
    known.details = status.details.map(|details| StatusDetails {
        retry_after_seconds: u32::try_from(details.retry_after_seconds).unwrap_or_default(),
        causes: details.causes.into_iter().map(Cause::known).collect(),
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
    });
    Ok(known)
}

impl Cause {
    fn known(self) -> StatusCause {
        StatusCause { reason: self.reason, message: self.message, field: self.field }
    }
}

pub(super) fn decode<M: Message + Default>(what: &str, bytes: Bytes) -> Result<M, Failure> {
    M::decode(bytes).map_err(|error| Failure::Encoding(format!("{what}: {error}")))
}

#[cfg(test)]
mod tests {
    use shunt_fake_apiserver::protobuf;

    use super::*;

    #[test]
    fn envelope_of_the_server_opens() {
        let object = Bytes::from_static(b"object");
        let envelope = protobuf::envelope("v1", "Status", object.to_vec());
        assert_eq!(open(envelope.into()), Ok(object));
        assert!(open(Bytes::from_static(b"{}")).is_err());
    }
}
