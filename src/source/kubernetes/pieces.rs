//! Reads the body of a watch piece by piece.

use http_body_util::BodyExt;
use hyper::Response;
use kube::client::Body;
use prost::bytes::{Buf, Bytes, BytesMut};

use super::content_type::ContentType;
use super::failure::Failure;

/// The longest piece. No object is larger: etcd accepts 1.5 MiB.
const MAX_BYTES: usize = 16 << 20;
/// The capacity that the buffer keeps after a longer piece.
const MAX_KEPT_BYTES: usize = 256 << 10;
/// The length of the length of a frame.
const HEAD_BYTES: usize = 4;

/// A reader that splits a body: JSON into lines, protobuf into frames, which are a length of 4 bytes
/// and that many bytes.
pub(super) struct Pieces {
    pub(super) content_type: ContentType,
    body: Body,
    buffer: BytesMut,
    /// The buffer has no end of a line before this offset.
    searched: usize,
}

impl Pieces {
    pub(super) fn new(answer: Response<Body>) -> Pieces {
        let content_type = ContentType::of(answer.headers());
        Pieces { content_type, body: answer.into_body(), buffer: BytesMut::new(), searched: 0 }
    }

    /// Returns the next piece; none at the end of the body. Drops an incomplete last piece.
    /// Cancel-safe: a dropped future loses no data.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let piece = match self.content_type {
                ContentType::Json => self.line()?,
                ContentType::Protobuf => self.frame()?,
            };
            if piece.is_some() {
                return Ok(piece);
            }
            if self.buffer.is_empty() && self.buffer.capacity() > MAX_KEPT_BYTES {
                self.buffer = BytesMut::new();
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Failure::broken(&error)),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }

    /// Takes a complete line from the buffer, without its end.
    fn line(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return match self.searched > MAX_BYTES {
                true => Err(Failure::Garbage(format!("a line of more than {MAX_BYTES} bytes"))),
                false => Ok(None),
            };
        };
        let line = self.buffer.split_to(self.searched + end).freeze();
        self.buffer.advance(1);
        self.searched = 0;
        Ok(Some(line))
    }

    /// Takes a complete frame from the buffer.
    fn frame(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some(head) = self.buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if length > MAX_BYTES {
            return Err(Failure::Encoding(format!(
                "a frame of {length} bytes; the limit is {MAX_BYTES}"
            )));
        }
        if self.buffer.len() - HEAD_BYTES < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}
