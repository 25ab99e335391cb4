//! Reads the body of an answer line by line.

use http_body_util::BodyExt;
use kube::client::Body;

use super::failure::Failure;

/// The longest line. No object is larger: etcd accepts 1.5 MiB.
const MAX_LINE_BYTES: usize = 16 << 20;
/// The capacity that the buffer keeps after a longer line.
const MAX_KEPT_BYTES: usize = 256 << 10;

/// A reader that splits a body into lines.
pub(super) struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// The offset of the next line.
    start: usize,
    /// The buffer has no end of a line before this offset.
    searched: usize,
}

impl Lines {
    pub(super) fn new(body: Body) -> Lines {
        Lines { body, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// Returns the next line, without its end; none at the end of the body. Drops an incomplete
    /// last line. Cancel-safe: a dropped future loses no data.
    pub(super) async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        loop {
            let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = self.start..self.searched + end;
                self.start = line.end + 1;
                self.searched = self.start;
                return Ok(Some(&self.buffer[line]));
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(Failure::Garbage(format!(
                    "a line of more than {MAX_LINE_BYTES} bytes"
                )));
            }
            if self.buffer.is_empty() {
                self.buffer.shrink_to(MAX_KEPT_BYTES);
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
}
