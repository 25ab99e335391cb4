//! Reads a page of a list item by item: protobuf as it arrives, so that its size needs no memory.

mod json;
mod protobuf;

use http_body_util::BodyExt;
use hyper::Response;
use kube::client::Body;
use tokio::time::timeout;

use super::client::REQUEST_TIMEOUT;
use super::content_type::ContentType;
use super::failure::Failure;
use crate::source::objects::Encoded;

/// The longest item. No object is larger: etcd accepts 1.5 MiB.
const MAX_ITEM_BYTES: usize = 16 << 20;

/// What a list says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListMetadata {
    /// The version of the list.
    pub(super) version: String,
    /// The token for the next page; none after the last one.
    pub(super) next: Option<String>,
}

/// A page of a list.
pub(super) struct Page {
    body: Body,
    items: Items,
}

/// Splits the bytes of a page into items.
#[derive(Debug)]
pub(super) enum Items {
    Json(json::Items),
    Protobuf(protobuf::Items),
}

impl Page {
    pub(super) fn new(answer: Response<Body>) -> Page {
        let items = Items::new(ContentType::of(answer.headers()));
        Page { body: answer.into_body(), items }
    }

    /// Returns the next item; none after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Encoded<'_>>, Failure> {
        while !self.items.advance()? {
            match timeout(REQUEST_TIMEOUT, self.body.frame()).await {
                Err(_) => {
                    let seconds = REQUEST_TIMEOUT.as_secs();
                    let reason = format!("the list stalled for {seconds} s");
                    return Err(Failure::Unreachable(reason));
                }
                Ok(None) if self.items.complete()? => {}
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Failure::broken(&error)),
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.items.push(data)?;
                    }
                }
            }
        }
        self.items.current().map(Some)
    }

    /// Returns the metadata, after the last item.
    ///
    /// # Errors
    /// If the list is incomplete.
    pub(super) fn end(self) -> Result<ListMetadata, Failure> {
        self.items.end()
    }
}

impl Items {
    pub(super) fn new(content_type: ContentType) -> Items {
        match content_type {
            ContentType::Json => Items::Json(json::Items::default()),
            ContentType::Protobuf => Items::Protobuf(protobuf::Items::default()),
        }
    }

    /// Takes more bytes of the page.
    pub(super) fn push(&mut self, data: &[u8]) -> Result<(), Failure> {
        match self {
            Items::Json(items) => return items.push(data),
            Items::Protobuf(items) => items.push(data),
        }
        Ok(())
    }

    /// Takes the end of the page. Returns true if there are more items now.
    pub(super) fn complete(&mut self) -> Result<bool, Failure> {
        match self {
            Items::Json(items) if !items.is_complete => items.complete().map(|()| true),
            _ => Ok(false),
        }
    }

    /// Moves to the next item. Returns false if it is not complete yet.
    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        match self {
            Items::Json(items) => Ok(items.advance()),
            Items::Protobuf(items) => items.advance(),
        }
    }

    /// Returns the item that the last [`Items::advance`] moved to.
    pub(super) fn current(&mut self) -> Result<Encoded<'_>, Failure> {
        match self {
            Items::Json(items) => Ok(Encoded::Json(items.current())),
            Items::Protobuf(items) => Ok(Encoded::Protobuf(items.current())),
        }
    }

    /// Returns the metadata of the page after its last byte.
    ///
    /// # Errors
    /// If the page is incomplete.
    pub(super) fn end(self) -> Result<ListMetadata, Failure> {
        match self {
            Items::Json(items) => Ok(items.end()),
            Items::Protobuf(items) => items.end(),
        }
    }
}

#[cfg(test)]
mod tests;
