//! The errors of netlink sockets.

use std::io;

use nix::errno::Errno;

use crate::Family;
use crate::nft::Refusal;

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
        "{bytes} bytes exceed the socket's send buffer, and the kernel refused to raise it \
         ({reason}): that needs CAP_NET_ADMIN in the initial user namespace, or a larger \
         net.core.wmem_max"
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
    /// The kernel refused a request other than a transaction.
    #[error("the kernel refused to {request}: {errno}")]
    Request {
        /// The request.
        request: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The objects changed while the kernel listed them, so that some may be missing.
    #[error("the listing is incomplete: objects changed during it")]
    Interrupted,
    /// The rules of the namespace are not those of the expected generation any more. Nothing was
    /// applied.
    #[error("another process changed the rules since they were last read")]
    StaleGeneration,
    /// A table belongs to another socket, which alone may change it.
    #[error(
        "the table {family} {table} belongs to another process (netlink port {port}, usually its \
         process ID), and only that process may change it: end it first"
    )]
    Owned {
        /// The family of the table.
        family: Family,
        /// Its name.
        table: String,
        /// The netlink port of the owner.
        port: u32,
    },
    /// The kernel refused the whole transaction; nothing was applied.
    #[error("nf_tables refused the transaction, nothing was applied: {}", join(.0))]
    Refused(Vec<Refusal>),
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

fn join(refusals: &[Refusal]) -> String {
    /// The number of refusals in an error: one cause can make many messages fail.
    const MAX_SHOWN: usize = 3;
    let mut text =
        refusals.iter().take(MAX_SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if refusals.len() > MAX_SHOWN {
        text.push_str(&format!("; and {} more", refusals.len() - MAX_SHOWN));
    }
    text
}
