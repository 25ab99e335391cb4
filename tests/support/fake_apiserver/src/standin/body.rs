//! Bodies of answers: whole, streamed, or broken off.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc;

/// The connection is broken off here.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("broken off on purpose")]
pub(super) struct Broken;

pub(super) type AnyBody = BoxBody<Bytes, Broken>;

/// A body that is known as a whole.
pub(super) fn whole(bytes: impl Into<Bytes>) -> AnyBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A body that is sent piece by piece, and breaks off after `limit` bytes.
pub(super) fn stream(limit: Option<usize>) -> (Sender, AnyBody) {
    let (sender, receiver) = mpsc::channel(16);
    (Sender { sender, left: limit }, Stream(receiver).boxed())
}

/// The writing end of a streamed body. None means that there is nobody to send to any more.
#[derive(Debug)]
pub(super) struct Sender {
    sender: mpsc::Sender<Result<Bytes, Broken>>,
    left: Option<usize>,
}

impl Sender {
    pub(super) async fn send(&mut self, mut bytes: Bytes) -> Option<()> {
        let Some(left) = &mut self.left else {
            return self.sender.send(Ok(bytes)).await.ok();
        };
        if bytes.len() < *left {
            *left -= bytes.len();
            return self.sender.send(Ok(bytes)).await.ok();
        }
        bytes.truncate(*left);
        self.sender.send(Ok(bytes)).await.ok()?;
        self.fail().await
    }

    /// Breaks off.
    pub(super) async fn fail(&mut self) -> Option<()> {
        let _ = self.sender.send(Err(Broken)).await;
        None
    }

    /// Waits until nobody listens.
    pub(super) async fn closed(&self) {
        self.sender.closed().await;
    }
}

#[derive(Debug)]
struct Stream(mpsc::Receiver<Result<Bytes, Broken>>);

impl Body for Stream {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| bytes.map(Frame::data)))
    }
}
