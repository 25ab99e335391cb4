//! The body of an answer, line by line.

use http_body_util::BodyExt;
use kube::client::Body;

use super::failure::Failure;

/// No object is larger than this: etcd takes 1.5 MiB.
const MAX_LINE_BYTES: usize = 16 << 20;
/// More than this is given back once it is not needed.
const MAX_KEPT_BYTES: usize = 256 << 10;

/// Splits a body into lines.
pub(super) struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// Where the next line begins.
    start: usize,
    /// Up to here there is no end of a line.
    searched: usize,
}

impl Lines {
    pub(super) fn new(body: Body) -> Lines {
        Lines { body, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// The next line, without its end; none at the end of the body. What comes after the last end
    /// of a line was cut off and is dropped. Can be cancelled without losing anything.
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
