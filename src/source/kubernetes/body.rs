//! Reads the body of an answer as it arrives.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Response;
use kube::client::Body;
use prost::bytes::{Buf, Bytes, BytesMut};
use tokio::time::timeout;

use super::content_type::ContentType;
use super::failure::{RequestFailure, innermost};

/// The longest object with what is around it. No object is larger: etcd accepts 1.5 MiB.
const MAX_BYTES: usize = 16 << 20;
/// The capacity that the buffer keeps after a longer part.
const MAX_KEPT_BYTES: usize = 256 << 10;
/// The length of the length of a frame.
const HEAD_BYTES: usize = 4;

/// The part of a body that has arrived and is not read yet. Its functions are cancel-safe: a dropped
/// future loses no data.
pub(super) struct Received {
    pub(super) content_type: ContentType,
    body: Body,
    stall_timeout: Duration,
    pub(super) buffer: BytesMut,
    /// The buffer has no end of a line before this offset.
    searched: usize,
}

impl Received {
    /// Reads the body of an answer, in which the server may pause for this long.
    pub(super) fn new(answer: Response<Body>, stall_timeout: Duration) -> Received {
        let content_type = ContentType::of(answer.headers());
        let (body, buffer) = (answer.into_body(), BytesMut::new());
        Received { content_type, body, stall_timeout, buffer, searched: 0 }
    }

    /// Waits for more bytes. Returns false at the end of the body.
    pub(super) async fn more(&mut self) -> Result<bool, RequestFailure> {
        if self.buffer.is_empty() && self.buffer.capacity() > MAX_KEPT_BYTES {
            self.buffer = BytesMut::new();
        }
        match timeout(self.stall_timeout, self.body.frame()).await {
            Err(_) => {
                let seconds = self.stall_timeout.as_secs();
                return Err(RequestFailure::Unreachable(format!(
                    "the list stalled for {seconds} s"
                )));
            }
            Ok(None) => return Ok(false),
            Ok(Some(Err(error))) => return Err(RequestFailure::Broken(innermost(&error))),
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.buffer.extend_from_slice(data);
                }
            }
        }
        Ok(true)
    }

    /// Waits for this many bytes. Returns false if the body ends before.
    pub(super) async fn has(&mut self, bytes: usize) -> Result<bool, RequestFailure> {
        if bytes > MAX_BYTES {
            let reason = format!("an object of {bytes} bytes; the limit is {MAX_BYTES}");
            return Err(RequestFailure::Encoding(reason));
        }
        while self.buffer.len() < bytes {
            if !self.more().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the next line or frame of a watch. Returns `None` at the end; an incomplete last one is
    /// dropped.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, RequestFailure> {
        match self.content_type {
            ContentType::Json => self.line().await,
            ContentType::Protobuf => self.frame().await,
        }
    }

    /// Takes a line, without its end.
    async fn line(&mut self) -> Result<Option<Bytes>, RequestFailure> {
        loop {
            let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = self.buffer.split_to(self.searched + end).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_BYTES {
                return Err(RequestFailure::Garbage(format!(
                    "a line of more than {MAX_BYTES} bytes"
                )));
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// Takes a frame: a length of 4 bytes and that many bytes.
    async fn frame(&mut self) -> Result<Option<Bytes>, RequestFailure> {
        if !self.has(HEAD_BYTES).await? {
            return Ok(None);
        }
        let Some(head) = self.buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if !self.has(HEAD_BYTES.saturating_add(length)).await? {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}
