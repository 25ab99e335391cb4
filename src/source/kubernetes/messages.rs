//! Answers of the API server, whatever their encoding: events of watches, rejections.

use hyper::Response;
use kube::client::Body;
use kube::core::Status;
use prost::bytes::Bytes;
use serde::de::IgnoredAny;

use super::content_type::ContentType;
use super::failure::Failure;
use super::pieces::Pieces;
use super::{json, protobuf};
use crate::source::objects::Encoded;

impl Encoded<'_> {
    /// Returns true if the text is not JSON. Then its neighbours are in doubt, too.
    pub(super) fn is_malformed(&self) -> bool {
        match self {
            Encoded::Json(json) => serde_json::from_str::<IgnoredAny>(json).is_err(),
            Encoded::Protobuf(_) => false,
        }
    }

    /// Returns the failure of an event with this object.
    pub(super) fn invalid(&self, reason: String) -> Failure {
        match self {
            Encoded::Json(_) => Failure::Garbage(reason),
            Encoded::Protobuf(_) => Failure::Encoding(reason),
        }
    }
}

/// An event of a watch.
pub(super) enum Event<'a> {
    /// An object was created or modified.
    Current(Encoded<'a>),
    /// An object was deleted.
    Gone(Encoded<'a>),
    /// Everything up to this version has been sent.
    Bookmark(String),
}

impl Event<'_> {
    /// Returns the bookmark with the metadata of this object.
    pub(super) fn bookmark(object: &Encoded<'_>) -> Result<Event<'static>, Failure> {
        let version = object.metadata().map_err(|reason| object.invalid(reason))?.resource_version;
        if version.is_empty() {
            return Err(Failure::Garbage("a bookmark without a resourceVersion".to_owned()));
        }
        Ok(Event::Bookmark(version))
    }
}

/// Decodes the body of a rejection. A body that is not a Status becomes its message.
pub(super) fn status(content_type: ContentType, body: &Bytes) -> Status {
    let status = match content_type {
        ContentType::Json => json::status(body),
        ContentType::Protobuf => protobuf::status(body.clone()),
    };
    status.unwrap_or_else(|| Status::failure(&String::from_utf8_lossy(body), ""))
}

/// A reader of the events of a watch.
pub(super) struct Events {
    pieces: Pieces,
    piece: Bytes,
}

impl Events {
    pub(super) fn new(answer: Response<Body>) -> Events {
        Events { pieces: Pieces::new(answer), piece: Bytes::new() }
    }

    /// Returns the next event; none at the end of the watch. An event that reports a failure is
    /// one. Cancel-safe: a dropped future loses no data.
    pub(super) async fn next(&mut self) -> Result<Option<Event<'_>>, Failure> {
        // Returns its part of the buffer, so that the next bytes need no other buffer.
        self.piece = Bytes::new();
        let Some(piece) = self.pieces.next().await? else { return Ok(None) };
        self.piece = piece;
        match self.pieces.content_type {
            ContentType::Json => json::event(&self.piece).map(Some),
            ContentType::Protobuf => protobuf::event(std::mem::take(&mut self.piece)).map(Some),
        }
    }
}
