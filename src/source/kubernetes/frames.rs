//! Reads the body of an answer frame by frame: a length of 4 bytes, and that many bytes.

use http_body_util::BodyExt;
use kube::client::Body;
use prost::bytes::{Buf, Bytes, BytesMut};

use super::failure::Failure;

/// The longest frame. No object is larger: etcd accepts 1.5 MiB.
const MAX_FRAME_BYTES: usize = 16 << 20;
/// The capacity that the buffer keeps after a longer frame.
const MAX_KEPT_BYTES: usize = 256 << 10;
/// The length of the length of a frame.
const HEAD_BYTES: usize = 4;

/// A reader that splits a body into frames.
pub(super) struct Frames {
    body: Body,
    buffer: BytesMut,
}

impl Frames {
    pub(super) fn new(body: Body) -> Frames {
        Frames { body, buffer: BytesMut::new() }
    }

    /// Returns the next frame; none at the end of the body. Drops an incomplete last frame.
    /// Cancel-safe: a dropped future loses no data.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
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

    /// Takes a complete frame from the buffer.
    fn take(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some(head) = self.buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if length > MAX_FRAME_BYTES {
            return Err(Failure::Encoding(format!(
                "a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}"
            )));
        }
        if self.buffer.len() - HEAD_BYTES < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}
