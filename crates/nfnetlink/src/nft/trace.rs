//! Traces of packets through the rules (`NFNLGRP_NFTRACE`): which rules matched, and their verdicts.
//!
//! The kernel reports a packet after a rule has set its trace bit ([`Expr::SetMeta`]). It sends one
//! message per matching rule, one for the end of each chain, and one for the policy of a base chain.
//!
//! [`Expr::SetMeta`]: super::Expr::SetMeta

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::uapi::{
    NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_TRACE_CHAIN, NFTA_TRACE_ID,
    NFTA_TRACE_IIF, NFTA_TRACE_MARK, NFTA_TRACE_NETWORK_HEADER, NFTA_TRACE_OIF, NFTA_TRACE_POLICY,
    NFTA_TRACE_RULE_HANDLE, NFTA_TRACE_TABLE, NFTA_TRACE_TRANSPORT_HEADER, NFTA_TRACE_TYPE,
    NFTA_TRACE_VERDICT, kind,
};
use super::{DumpedRule, Error, NfProto, Socket, Verdict};
use crate::attr::{ip, put_be64, put_text};
use crate::message::Message;
use crate::socket::{self, Bus};

/// The size of the receive buffer in bytes: a message takes up to 4 KiB of it.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// `NFT_TRACETYPE_*`.
const POLICY: u32 = 1;
const RETURN: u32 = 2;
const RULE: u32 = 3;

/// One step of a packet through the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// The kernel's number for the packet. A packet that loops back to the node gets another one.
    pub id: u32,
    /// The family of the table.
    pub family: NfProto,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The part of the chain.
    pub step: TraceStep,
    /// The verdict of the rule or the policy.
    pub verdict: Verdict,
    /// The packet mark after the step.
    pub mark: u32,
    /// The index of the interface on which the packet arrived. Interfaces and headers are only in
    /// the first message of each base chain.
    pub input: Option<u32>,
    /// The index of the interface by which the packet leaves.
    pub output: Option<u32>,
    /// The addresses and ports, as they were when the base chain began.
    pub header: Option<PacketHeader>,
}

/// The part of a chain that a [`TraceEvent`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceStep {
    /// A rule that matched, by its handle.
    Rule(u64),
    /// The end of a chain that another chain called.
    Return,
    /// The policy of a base chain.
    Policy,
}

/// The addresses and ports of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketHeader {
    /// The protocol number in the IP header.
    pub protocol: u8,
    /// The source; port 0 for protocols without ports.
    pub source: SocketAddr,
    /// The destination; port 0 for protocols without ports.
    pub destination: SocketAddr,
    /// The flags of a TCP header.
    pub tcp_flags: Option<u8>,
    /// The type of an ICMP or ICMPv6 message.
    pub icmp_type: Option<u8>,
}

impl PacketHeader {
    /// Reads an IP header and the beginning of the transport header. Extension headers of IPv6 are
    /// skipped as far as `network` has them.
    #[must_use]
    pub fn parse(network: &[u8], transport: &[u8]) -> Option<PacketHeader> {
        let (protocol_at, source_at, length) = match network.first()? >> 4 {
            4 => (9, 12, 4),
            6 => (6, 8, 16),
            _ => return None,
        };
        let protocol = *network.get(protocol_at)?;
        let address = |at: usize| ip(network.get(at..at + length)?);
        let (source, destination) = (address(source_at)?, address(source_at + length)?);
        let known = [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP];
        let has_ports = known.contains(&i32::from(protocol));
        let port = |at: usize| {
            let port = transport.get(at..).and_then(|rest| rest.first_chunk());
            port.filter(|_| has_ports).map_or(0, |bytes| u16::from_be_bytes(*bytes))
        };
        let is_tcp = i32::from(protocol) == libc::IPPROTO_TCP;
        let is_icmp = [libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6].contains(&i32::from(protocol));
        Some(PacketHeader {
            protocol,
            source: SocketAddr::new(source, port(0)),
            destination: SocketAddr::new(destination, port(2)),
            tcp_flags: transport.get(13).copied().filter(|_| is_tcp),
            icmp_type: is_icmp.then(|| transport.first().copied()).flatten(),
        })
    }

    /// Returns true if this is a packet of the other direction, between the same addresses and
    /// ports.
    #[must_use]
    pub fn answers(&self, other: &PacketHeader) -> bool {
        self.protocol == other.protocol
            && self.source == other.destination
            && self.destination == other.source
    }

    /// Returns true if this has the same protocol, addresses and ports.
    #[must_use]
    pub fn is_of_flow(&self, other: &PacketHeader) -> bool {
        self.protocol == other.protocol
            && self.source == other.source
            && self.destination == other.destination
    }

    /// Returns true if this is an ICMP error, such as "port unreachable" (RFC 792, RFC 4443). A
    /// redirect is none.
    #[must_use]
    pub fn is_icmp_error(&self) -> bool {
        match (i32::from(self.protocol), self.icmp_type) {
            (libc::IPPROTO_ICMP, Some(kind)) => matches!(kind, 3 | 11 | 12),
            (libc::IPPROTO_ICMPV6, Some(kind)) => matches!(kind, 1..=4),
            _ => false,
        }
    }

    /// Returns true if this is a TCP reset.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.tcp_flags.is_some_and(|flags| flags & 0x04 != 0)
    }
}

impl TraceEvent {
    /// Reads an event; `None` for other messages and malformed ones.
    #[must_use]
    pub fn parse(message: &Message<'_>) -> Option<TraceEvent> {
        if message.kind != kind(libc::NFT_MSG_TRACE) {
            return None;
        }
        let attrs = message.attrs();
        let text = |kind| Some(attrs.text(kind)?.to_owned());
        let bytes = |kind| attrs.find(kind).map_or(&[][..], |it| it.payload);
        let verdict = attrs.find(NFTA_TRACE_VERDICT).and_then(|it| Verdict::parse(&it));
        let (step, verdict) = match attrs.be32(NFTA_TRACE_TYPE)? {
            RULE => {
                let handle = attrs.be64(NFTA_TRACE_RULE_HANDLE)?;
                (TraceStep::Rule(handle), verdict?)
            }
            RETURN => (TraceStep::Return, verdict.unwrap_or(Verdict::Return)),
            POLICY => (TraceStep::Policy, Verdict::of(attrs.be32(NFTA_TRACE_POLICY)? as i32, None)),
            _ => return None,
        };
        Some(TraceEvent {
            id: attrs.be32(NFTA_TRACE_ID)?,
            family: NfProto::from_number(*message.payload.first()?),
            table: text(NFTA_TRACE_TABLE)?,
            chain: text(NFTA_TRACE_CHAIN)?,
            step,
            verdict: verdict.with(|chain| (*chain).to_owned()),
            mark: attrs.be32(NFTA_TRACE_MARK).unwrap_or(0),
            input: attrs.be32(NFTA_TRACE_IIF),
            output: attrs.be32(NFTA_TRACE_OIF),
            header: PacketHeader::parse(
                bytes(NFTA_TRACE_NETWORK_HEADER),
                bytes(NFTA_TRACE_TRANSPORT_HEADER),
            ),
        })
    }
}

/// A listener to the traces of a network namespace. It does not subscribe to changes of the rules
/// (`NFNLGRP_NFTABLES`), which would slow down all commits.
#[derive(Debug)]
pub struct TraceListener(socket::NetlinkSocket);

impl TraceListener {
    /// Subscribes in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub fn open() -> Result<TraceListener, Error> {
        const GROUPS: u32 = 1 << (libc::NFNLGRP_NFTRACE - 1);
        let socket = socket::NetlinkSocket::bind(Bus::Netfilter, 0, GROUPS)?;
        socket.raise_receive_buffer(RECEIVE_BUFFER);
        Ok(TraceListener(socket))
    }

    /// Calls `each` with the events that have arrived, without waiting for more. Returns true if the
    /// kernel dropped events because the receive buffer was full.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn drain(&mut self, mut each: impl FnMut(TraceEvent)) -> Result<bool, Error> {
        self.0.drain(|message| TraceEvent::parse(&message).into_iter().for_each(&mut each))
    }
}

impl AsFd for TraceListener {
    /// Returns the descriptor, which becomes readable when events arrive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// Reads one rule of any table by its handle; `None` if there is no such rule (any more).
    ///
    /// # Errors
    /// If the kernel refuses the query for another reason.
    pub fn rule(
        &mut self,
        family: NfProto,
        table: &str,
        chain: &str,
        handle: u64,
    ) -> Result<Option<DumpedRule>, Error> {
        let of = |body: &mut Vec<u8>| {
            put_text(body, NFTA_RULE_TABLE, table);
            put_text(body, NFTA_RULE_CHAIN, chain);
            put_be64(body, NFTA_RULE_HANDLE, handle);
        };
        let message = libc::NFT_MSG_GETRULE;
        self.get("read a rule", message, family.number(), of, DumpedRule::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::put_be32;
    use crate::message::{self, messages, put_netfilter_header};

    /// Newer kernels tell of no returns.
    #[test]
    fn return_is_read() {
        let mut buffer = Vec::new();
        message::put(&mut buffer, kind(libc::NFT_MSG_TRACE), 0, 0, |body| {
            put_netfilter_header(body, 2, 0);
            put_be32(body, NFTA_TRACE_ID, 7);
            put_be32(body, NFTA_TRACE_TYPE, RETURN);
            put_text(body, NFTA_TRACE_TABLE, "t");
            put_text(body, NFTA_TRACE_CHAIN, "c");
        });
        let event = messages(&buffer).next().and_then(|it| TraceEvent::parse(&it));
        let event = event.expect("an event");
        assert_eq!((event.step, event.verdict), (TraceStep::Return, Verdict::Return));
    }

    #[test]
    fn replies_are_recognised_by_their_addresses() {
        let (client, server) = (([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        let header = |source, destination| PacketHeader {
            protocol: 6,
            source,
            destination,
            tcp_flags: None,
            icmp_type: None,
        };
        let (request, reply) = (header(client, server), header(server, client));
        assert!(reply.answers(&request) && !request.answers(&request));
        assert!(request.is_of_flow(&request) && !reply.is_of_flow(&request));
    }
}
