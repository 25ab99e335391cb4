//! Reads a page of a list item by item: protobuf as it arrives, so that its size needs no memory.

use hyper::Response;
use kube::client::Body;
use prost::Message;
use prost::bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::body::Received;
use super::client::REQUEST_TIMEOUT;
use super::content_type::ContentType;
use super::failure::RequestFailure;
use super::messages::{MAGIC, decode, garbage, not_an_object};
use crate::source::objects::Encoded;

/// The size limit of a page in JSON. Most have 250 items.
const MAX_PAGE_BYTES: usize = 1 << 30;
/// The longest head of a field: two numbers of at most 10 bytes.
const MAX_HEAD_BYTES: usize = 20;
/// The field of `runtime.Unknown`, the envelope, with the list.
const RAW: u32 = 2;
/// Fields of each list.
const METADATA: u32 = 1;
const ITEMS: u32 = 2;

/// `meta.v1.ListMeta`.
#[derive(Deserialize, Message, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMetadata {
    /// The version of the list.
    #[prost(string, tag = "2")]
    #[serde(rename = "resourceVersion")]
    pub(super) version: String,
    /// The token for the next page; empty after the last one.
    #[prost(string, tag = "3")]
    #[serde(rename = "continue")]
    pub(super) next: String,
}

/// Reads a page and calls `take` with each item. Returns the metadata of the list.
///
/// # Errors
/// If the page is incomplete.
pub(super) async fn read(
    answer: Response<Body>,
    take: impl FnMut(&Encoded<'_>),
) -> Result<ListMetadata, RequestFailure> {
    let received = Received::new(answer, REQUEST_TIMEOUT);
    match received.content_type {
        ContentType::Json => read_json(received, take).await,
        ContentType::Protobuf => read_protobuf(received, take).await,
    }
}

/// Reads a page in JSON when it is complete: protobuf is the default.
async fn read_json(
    mut received: Received,
    mut take: impl FnMut(&Encoded<'_>),
) -> Result<ListMetadata, RequestFailure> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(default)]
        metadata: ListMetadata,
        #[serde(borrow)]
        items: Option<Vec<&'a RawValue>>,
    }

    while received.more().await? {
        if received.buffer.len() > MAX_PAGE_BYTES {
            return Err(garbage(&"too long", &received.buffer));
        }
    }
    let page = &received.buffer;
    let list: List<'_> = serde_json::from_slice(page).map_err(|error| garbage(&error, page))?;
    if list.metadata.version.is_empty() {
        return Err(garbage(&"no list", page));
    }
    for item in list.items.into_iter().flatten() {
        take(&Encoded::Json(item.get()));
    }
    Ok(list.metadata)
}

/// Reads a page in protobuf: an envelope (`runtime.Unknown`) around a list, of which field 1 is the
/// metadata and field 2 repeats the items.
async fn read_protobuf(
    mut received: Received,
    mut take: impl FnMut(&Encoded<'_>),
) -> Result<ListMetadata, RequestFailure> {
    let incomplete = || RequestFailure::Encoding("an incomplete list".to_owned());
    let mut metadata = ListMetadata::default();
    if !received.has(MAGIC.len()).await? {
        return Err(incomplete());
    }
    if !received.buffer.starts_with(MAGIC) {
        return Err(not_an_object(&received.buffer));
    }
    received.buffer.advance(MAGIC.len());
    // The number of bytes of the list that are still to come.
    let mut left = 0;
    while let Some(field) = FieldHead::read(&mut received).await? {
        if left == 0 && field.number == RAW {
            received.buffer.advance(field.head);
            left = field.value;
            continue;
        }
        let is_of_list = left > 0;
        if is_of_list {
            left = left.checked_sub(field.length()).ok_or_else(|| {
                RequestFailure::Encoding("an item longer than its list".to_owned())
            })?;
        }
        let value = field.value(&mut received).await?.ok_or_else(incomplete)?;
        match field.number {
            METADATA if is_of_list => metadata = decode("the metadata of a list", value)?,
            ITEMS if is_of_list => take(&Encoded::Protobuf(value)),
            _ => {}
        }
    }
    if left > 0 {
        return Err(incomplete());
    }
    match metadata.version.is_empty() {
        true => Err(RequestFailure::Encoding("a list without a resourceVersion".to_owned())),
        false => Ok(metadata),
    }
}

/// The head of a field in protobuf.
struct FieldHead {
    number: u32,
    /// The number of bytes of the head.
    head: usize,
    /// The number of bytes of the value.
    value: usize,
}

impl FieldHead {
    /// Reads the head of the next field. Returns `None` at the end of the body.
    async fn read(received: &mut Received) -> Result<Option<FieldHead>, RequestFailure> {
        loop {
            match FieldHead::parse(&received.buffer) {
                Ok(field) => return Ok(Some(field)),
                Err(error) if received.buffer.len() >= MAX_HEAD_BYTES => {
                    return Err(RequestFailure::Encoding(format!("a list: {error}")));
                }
                Err(_) if received.more().await? => {}
                Err(_) if received.buffer.is_empty() => return Ok(None),
                Err(_) => return Err(RequestFailure::Encoding("an incomplete list".to_owned())),
            }
        }
    }

    fn parse(buffer: &[u8]) -> Result<FieldHead, prost::DecodeError> {
        let mut rest = buffer;
        let (number, wire_type) = decode_key(&mut rest)?;
        let value = match wire_type {
            WireType::Varint => decode_varint(&mut rest).map(|_| 0)?,
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => decode_varint(&mut rest)?,
            // Both are deprecated and without a value of their own.
            WireType::StartGroup | WireType::EndGroup => 0,
        };
        let value = usize::try_from(value).unwrap_or(usize::MAX / 2);
        Ok(FieldHead { number, head: buffer.len() - rest.len(), value })
    }

    /// The number of bytes of head and value.
    fn length(&self) -> usize {
        self.head.saturating_add(self.value)
    }

    /// Takes the whole field from the buffer and returns its value; `None` if the body ends before.
    async fn value(&self, received: &mut Received) -> Result<Option<Bytes>, RequestFailure> {
        if !received.has(self.length()).await? {
            return Ok(None);
        }
        received.buffer.advance(self.head);
        Ok(Some(received.buffer.split_to(self.value).freeze()))
    }
}

#[cfg(test)]
mod tests;
