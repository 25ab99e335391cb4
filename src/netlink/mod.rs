//! What all conversations over netlink share.
//!
//! Owns: reading and writing of messages and attributes. Must not know: which part of the kernel
//! is spoken to.

pub(crate) mod attr;
pub(crate) mod message;
