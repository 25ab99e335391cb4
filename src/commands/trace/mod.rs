//! Follows real packets through all rules of a network namespace.
//!
//! Owns: a table that exists only meanwhile and sets the trace bit of some first packets
//! ([`TraceTable`]), the way of each packet from the events of the kernel ([`Packets`]), and the
//! [`Report`] about it.
//!
//! Must not know: the objects of the cluster. It works without an agent.

pub(in crate::commands) mod command;
mod follow;
mod packets;
mod report;
mod table;
mod text;

use std::net::SocketAddr;

use shunt_core::model::Protocol;

pub(super) use follow::Tracer;
pub use packets::{Outcome, Packet, Packets, Reply, Step};
pub use report::{Report, StepReport};
pub use table::TraceTable;

/// The packets to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The destination address and port, as the client sends it.
    pub to: SocketAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The source address, and its port unless that is 0; `None` for every source.
    pub from: Option<SocketAddr>,
}
