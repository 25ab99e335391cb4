//! The errors of netlink sockets.

use std::io;

use nix::errno::Errno;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket.
    #[error("cannot open a netlink socket: {0}")]
    Open(io::Error),
    /// The kernel accepted no message.
    #[error("cannot send {bytes} bytes to the kernel: {reason}")]
    Send {
        /// The size of the messages.
        bytes: usize,
        /// Why.
        reason: io::Error,
    },
    /// The messages exceed the send buffer, and the kernel refuses a larger buffer.
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
    /// The answer lacks a required part.
    #[error("the kernel's answer is malformed: {0}")]
    Malformed(&'static str),
    /// The kernel refused a request.
    #[error("the kernel refused to {request}: {errno}")]
    Refused {
        /// The request.
        request: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The objects changed while the kernel listed them, so that some may be missing.
    #[error("the listing is incomplete, because its objects changed meanwhile")]
    Interrupted,
}

impl Error {
    /// Returns true if the next dump may succeed: objects changed, or the kernel had no room for the
    /// request or a part of its answer.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Error::Interrupted => true,
            Error::Send { reason, .. } | Error::Receive(reason) => {
                reason.raw_os_error() == Some(libc::ENOBUFS)
            }
            _ => false,
        }
    }
}

impl From<Error> for io::Error {
    /// Keeps the error number, if there is one.
    fn from(error: Error) -> io::Error {
        match error {
            Error::Open(reason) | Error::Receive(reason) | Error::Send { reason, .. } => reason,
            other => io::Error::other(other),
        }
    }
}
