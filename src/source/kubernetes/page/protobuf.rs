//! The items of a page in protobuf: an envelope (`runtime.Unknown`) around a list, of which field 1
//! is the metadata and field 2 repeats the items.

use prost::Message;
use prost::bytes::{Buf, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint};

use super::super::failure::Failure;
use super::super::protobuf::{MAGIC, decode, not_an_object, unknown_encoding};
use super::{ListMetadata, MAX_ITEM_BYTES};

/// The longest head of a field: two numbers of at most 10 bytes.
const MAX_HEAD_BYTES: usize = 20;
/// Fields of `runtime.Unknown`.
const RAW: u32 = 2;
const CONTENT_ENCODING: u32 = 3;
/// Fields of each list.
const METADATA: u32 = 1;
const ITEMS: u32 = 2;

/// `meta.v1.ListMeta`.
#[derive(Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    next: String,
}

/// Splits the bytes of a page into items.
#[derive(Debug, Default)]
pub(in crate::source::kubernetes) struct Items {
    buffer: BytesMut,
    position: Position,
    metadata: ListMeta,
    item: Bytes,
}

/// What the buffer begins with.
#[derive(Debug, Default, Clone, Copy)]
enum Position {
    #[default]
    Magic,
    /// A field of the envelope, or its end.
    Envelope,
    /// A field of the list, of which this many bytes are left.
    List { left: usize },
}

/// The head of a field.
struct Field {
    number: u32,
    /// The value has a length, so it may be a message, a text or bytes.
    is_delimited: bool,
    head: usize,
    value: usize,
}

impl Items {
    pub(super) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        // Returns its part of the buffer, so that the next bytes need no other buffer.
        self.item = Bytes::new();
        loop {
            match self.position {
                Position::Magic if self.buffer.len() < MAGIC.len() => return Ok(false),
                Position::Magic => {
                    if !self.buffer.starts_with(MAGIC) {
                        return Err(not_an_object(&self.buffer));
                    }
                    self.buffer.advance(MAGIC.len());
                    self.position = Position::Envelope;
                }
                Position::Envelope => {
                    let Some(field) = Field::parse(&self.buffer)? else { return Ok(false) };
                    if field.number == RAW && field.is_delimited {
                        self.buffer.advance(field.head);
                        self.position = Position::List { left: field.value };
                        continue;
                    }
                    let Some(value) = self.take(&field)? else { return Ok(false) };
                    if field.number == CONTENT_ENCODING && !value.is_empty() {
                        return Err(unknown_encoding(&String::from_utf8_lossy(&value)));
                    }
                }
                Position::List { left: 0 } => self.position = Position::Envelope,
                Position::List { left } => {
                    let Some(field) = Field::parse(&self.buffer)? else { return Ok(false) };
                    let Some(left) = left.checked_sub(field.length()) else {
                        return Err(Failure::Encoding("an item longer than its list".to_owned()));
                    };
                    let Some(value) = self.take(&field)? else { return Ok(false) };
                    self.position = Position::List { left };
                    match field.number {
                        METADATA => self.metadata = decode("the metadata of a list", value)?,
                        ITEMS => {
                            self.item = value;
                            return Ok(true);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    pub(super) fn current(&mut self) -> Bytes {
        std::mem::take(&mut self.item)
    }

    pub(super) fn end(self) -> Result<ListMetadata, Failure> {
        let is_complete = matches!(self.position, Position::Envelope | Position::List { left: 0 });
        if !is_complete || !self.buffer.is_empty() {
            return Err(Failure::Encoding("an incomplete list".to_owned()));
        }
        let ListMeta { resource_version, next } = self.metadata;
        if resource_version.is_empty() {
            return Err(Failure::Encoding("a list without a resourceVersion".to_owned()));
        }
        let next = Some(next).filter(|next| !next.is_empty());
        Ok(ListMetadata { version: resource_version, next })
    }

    /// Takes a whole field from the buffer and returns its value.
    fn take(&mut self, field: &Field) -> Result<Option<Bytes>, Failure> {
        if field.value > MAX_ITEM_BYTES {
            return Err(Failure::Encoding(format!(
                "an item of {} bytes; the limit is {MAX_ITEM_BYTES}",
                field.value
            )));
        }
        if self.buffer.len() < field.length() {
            return Ok(None);
        }
        self.buffer.advance(field.head);
        Ok(Some(self.buffer.split_to(field.value).freeze()))
    }
}

impl Field {
    /// The number of bytes of head and value.
    fn length(&self) -> usize {
        self.head.saturating_add(self.value)
    }

    /// Parses the head of the field at the beginning of the buffer. Returns `None` if it is not
    /// complete.
    fn parse(buffer: &[u8]) -> Result<Option<Field>, Failure> {
        let mut rest = buffer;
        let parsed = decode_key(&mut rest).and_then(|(number, wire_type)| {
            let value = match wire_type {
                WireType::Varint => decode_varint(&mut rest).map(|_| 0)?,
                WireType::SixtyFourBit => 8,
                WireType::ThirtyTwoBit => 4,
                WireType::LengthDelimited => decode_varint(&mut rest)?,
                // Both are deprecated and without a value of their own.
                WireType::StartGroup | WireType::EndGroup => 0,
            };
            Ok((number, wire_type == WireType::LengthDelimited, value))
        });
        match parsed {
            Ok((number, is_delimited, value)) => {
                let value = usize::try_from(value).unwrap_or(usize::MAX / 2);
                Ok(Some(Field { number, is_delimited, head: buffer.len() - rest.len(), value }))
            }
            Err(_) if buffer.len() < MAX_HEAD_BYTES => Ok(None),
            Err(error) => Err(Failure::Encoding(format!("a list: {error}"))),
        }
    }
}
