//! Errors of a socket to nf_tables.

use std::io;

use nix::errno::Errno;

use super::Refusal;
use crate::Family;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket to nf_tables.
    #[error("cannot open a netlink socket to nf_tables: {0}")]
    Open(io::Error),
    /// The kernel accepted no message at all.
    #[error("cannot send {bytes} bytes to nf_tables: {reason}")]
    Send {
        /// The size of the message or transaction.
        bytes: usize,
        /// Why.
        reason: io::Error,
    },
    /// The transaction exceeds the send buffer, and the kernel refuses a larger buffer.
    #[error(
        "a transaction of {bytes} bytes exceeds the socket's send buffer, and raising it was \
         refused ({reason}): CAP_NET_ADMIN is needed in the initial user namespace, or a larger \
         net.core.wmem_max"
    )]
    TooLarge {
        /// The size of the transaction.
        bytes: usize,
        /// The kernel's answer to the request for a larger buffer.
        reason: io::Error,
    },
    /// No answer could be read.
    #[error("cannot read the answer of nf_tables: {0}")]
    Receive(io::Error),
    /// The answer lacks what it must have.
    #[error("the answer of nf_tables is malformed: {0}")]
    Malformed(&'static str),
    /// The kernel refused a request other than a transaction.
    #[error("nf_tables refused to {request}: {errno}")]
    Request {
        /// The request.
        request: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The rules changed while they were being listed.
    #[error("another process changed the rules while they were listed")]
    Interrupted,
    /// The rules of the namespace are not those of the expected generation any more. Nothing was
    /// applied.
    #[error("another process changed the rules since they were last read")]
    StaleGeneration,
    /// A table belongs to another socket, which alone may change it.
    #[error(
        "the table {family} {table} belongs to another process (netlink port {port}, mostly its \
         process id), which alone may change it: end that one first"
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

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Error {
        match error {
            crate::Error::Open(reason) => Error::Open(reason),
            crate::Error::Send { bytes, reason } => Error::Send { bytes, reason },
            crate::Error::TooLarge { bytes, reason } => Error::TooLarge { bytes, reason },
            crate::Error::Receive(reason) => Error::Receive(reason),
            crate::Error::Malformed(what) => Error::Malformed(what),
            crate::Error::Refused { request, errno } => Error::Request { request, errno },
            crate::Error::Interrupted => Error::Interrupted,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::other(error)
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
