//! Follows real packets through all rules of a network namespace.
//!
//! Owns: a table that exists only meanwhile and sets the trace bit of some first packets
//! ([`TraceTable`]), the way of each packet from the events of the kernel ([`Packets`]), and the
//! [`Report`] about it.
//!
//! Must not know: the objects of the cluster. Rules of shunt are recognised by the plan of the
//! running agent, which the caller asks for.

pub(in crate::commands) mod command;
mod follow;
mod packets;
mod report;
mod table;
mod text;

use std::net::{IpAddr, SocketAddr};

use shunt_core::model::Protocol;

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
    /// The source address; `None` for every source.
    pub from: Option<IpAddr>,
}
