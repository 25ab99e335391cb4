//! What can go wrong between a netlink socket and the kernel.

use std::io;

use nix::errno::Errno;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket.
    #[error("cannot open a netlink socket: {0}")]
    Open(io::Error),
    /// The kernel took no message.
    #[error("cannot send {bytes} bytes to the kernel: {reason}")]
    Send {
        /// The size of the messages.
        bytes: usize,
        /// Why.
        reason: io::Error,
    },
    /// The messages exceed what the socket may send at once, and the limit may not be raised.
    #[error(
        "{bytes} bytes exceed the socket's send buffer, and raising it was refused ({reason}): \
         CAP_NET_ADMIN is needed in the initial user namespace, or a larger net.core.wmem_max"
    )]
    TooLarge {
        /// The size of the messages.
        bytes: usize,
        /// The kernel's answer to the request for a larger buffer.
        reason: io::Error,
    },
    /// No answer could be read.
    #[error("cannot read the kernel's answer: {0}")]
    Receive(io::Error),
    /// The answer lacks what it must have.
    #[error("the kernel's answer is malformed: {0}")]
    Malformed(&'static str),
    /// The kernel refused a request.
    #[error("the kernel refused to {request}: {errno}")]
    Refused {
        /// What was asked for.
        request: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The objects changed while the kernel listed them, so that some may be missing.
    #[error("the listing is incomplete, because its objects changed meanwhile")]
    Interrupted,
}

impl From<Error> for io::Error {
    /// Keeps the number of the error, where it has one.
    fn from(error: Error) -> io::Error {
        match error {
            Error::Open(reason) | Error::Receive(reason) | Error::Send { reason, .. } => reason,
            other => io::Error::other(other),
        }
    }
}
