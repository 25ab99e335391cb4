//! Follows real packets through all rules of a network namespace.
//!
//! Owns: a table that exists only meanwhile and sets the trace bit of some first packets
//! (`TraceTable`), the way of each packet from the events of the kernel (`Packets`), and the
//! [`TraceReport`] about it.
//!
//! Must not know: the objects of the cluster. It works without an agent.

pub(in crate::commands) mod command;
mod follow;
mod packets;
mod report;
mod table;
mod text;

use std::net::SocketAddr;
use std::time::Instant;

use nfnetlink::nft::{PacketHeader, TraceEvent};
use serde::Serialize;
use shunt_core::model::Protocol;

pub(super) use follow::Tracer;

/// The packets to trace.
pub(super) struct Target {
    /// The destination address and port, as the client sends it.
    pub(super) to: SocketAddr,
    /// The transport protocol.
    pub(super) protocol: Protocol,
    /// The source address, and its port unless that is 0; `None` for every source.
    pub(super) from: Option<SocketAddr>,
    /// The number of clients: of each, only the first packet counts.
    pub(super) count: u32,
}

/// A traced packet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packet {
    ids: Vec<u32>,
    /// The addresses and ports at the beginning.
    first: PacketHeader,
    /// The addresses and ports where the packet was seen last.
    last: PacketHeader,
    /// The index of the interface on which it arrived; `None` for a packet of the node itself.
    input: Option<u32>,
    /// The index of the interface by which it left the node; `None` if a process received it.
    output: Option<u32>,
    /// The mark after the last step.
    mark: u32,
    /// The rules and policies that it met.
    steps: Vec<TraceEvent>,
    /// The first reply.
    reply: Option<Reply>,
    place: TracePlace,
    dropped: Option<TraceEvent>,
    touched: Instant,
}

/// How far a packet came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TracePlace {
    /// Before the routing decision.
    Begun,
    /// In the hook forward.
    Forwarded,
    /// At the end of the last hook: on its way to an interface or a process.
    Gone,
}

/// The first reply to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reply {
    id: u32,
    /// The addresses and ports, before NAT is undone.
    header: PacketHeader,
    /// The step that dropped the reply.
    dropped: Option<TraceEvent>,
}

/// What became of a packet, and its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceReport {
    /// The source, as the packet arrived.
    pub source: SocketAddr,
    /// The destination, as the packet arrived.
    pub destination: SocketAddr,
    /// The transport protocol.
    pub protocol: String,
    /// The interface on which the packet arrived; `null` for a packet of the node itself.
    pub input: Option<String>,
    /// The rules and policies that it met, in their order.
    pub steps: Vec<StepReport>,
    /// The service port, as `namespace/name:port`.
    pub service: Option<String>,
    /// The backend, if NAT changed the destination.
    pub backend: Option<SocketAddr>,
    /// The source as it was seen last, if NAT changed it.
    pub translated_source: Option<SocketAddr>,
    /// The interface by which the packet left the node.
    pub output: Option<String>,
    /// `delivered`, `refused`, `dropped` or `lost`.
    pub outcome: &'static str,
    /// The rule, policy or endpoint that ended the way.
    pub by: Option<String>,
    /// Why, as far as it is known.
    pub reason: Option<String>,
    /// True if a reply came back, false if none came within three seconds; `null` if the packet was
    /// not delivered.
    pub answered: Option<bool>,
}

/// A rule or policy that a packet met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    /// The hook of the base chain; empty if it is unknown.
    pub hook: String,
    /// The family of the table.
    pub family: String,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The number of the rule; `null` for the policy of the chain.
    pub handle: Option<u64>,
    /// The rule in the syntax of nft; `null` for a policy, or if the rule is gone.
    pub rule: Option<String>,
    /// The comment of the rule.
    pub comment: Option<String>,
    /// The verdict.
    pub verdict: String,
    /// The element that gave the verdict: its map and its comment, a service port.
    pub element: Option<String>,
    /// The backend that the rule chose.
    pub backend: Option<SocketAddr>,
}
