//! Entries of connection tracking with all their properties, for people.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::Family;
use crate::attr::{Attrs, nest, put};
use crate::nft::Counter;

use super::Tuple;
use super::entry::{in_zone, parse_tuple, put_tuple};
use super::uapi::{
    CTA_COUNTERS_BYTES, CTA_COUNTERS_ORIG, CTA_COUNTERS_PACKETS, CTA_COUNTERS_REPLY, CTA_FILTER,
    CTA_FILTER_F_CTA_IP_DST, CTA_FILTER_F_CTA_PROTO_DST_PORT, CTA_FILTER_F_CTA_PROTO_NUM,
    CTA_FILTER_ORIG_FLAGS, CTA_IP_V4_DST, CTA_MARK, CTA_PROTO_DST_PORT, CTA_PROTO_NUM,
    CTA_PROTOINFO, CTA_PROTOINFO_SCTP, CTA_PROTOINFO_SCTP_STATE, CTA_PROTOINFO_TCP,
    CTA_PROTOINFO_TCP_STATE, CTA_STATUS, CTA_TIMEOUT, CTA_TUPLE_IP, CTA_TUPLE_ORIG,
    CTA_TUPLE_PROTO, CTA_TUPLE_REPLY, CTA_ZONE,
};

/// A connection or flow that the kernel tracks, with all properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The protocol number in the IP header (`IPPROTO_*`).
    pub protocol: u8,
    /// The direction of the first packet: its destination is the address that the client sent it
    /// to.
    pub original: Tuple,
    /// The direction of the replies: their source is the address that NAT redirected the client to,
    /// their destination the address that NAT gave the client.
    pub reply: Tuple,
    /// The state of the protocol; `None` for protocols without states, such as UDP.
    pub state: Option<ProtocolState>,
    /// The status bits.
    pub status: Status,
    /// The time until the kernel forgets the connection, if no packet comes.
    pub timeout: Duration,
    /// The connection mark.
    pub mark: u32,
    /// The zone; 0 is the default one.
    pub zone: u16,
    /// The packets of the original direction and of the replies, if the kernel counts them
    /// (`net.netfilter.nf_conntrack_acct`).
    pub counters: Option<(Counter, Counter)>,
}

/// The status bits of an entry (`IPS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u32);

impl Status {
    /// The kernel has seen packets in both directions.
    pub const SEEN_REPLY: Status = Status(1 << 1);
    /// The kernel keeps the entry even if the table is full.
    pub const ASSURED: Status = Status(1 << 2);
    /// NAT changed the source of the original direction.
    pub const SRC_NAT: Status = Status(1 << 4);
    /// NAT changed the destination of the original direction.
    pub const DST_NAT: Status = Status(1 << 5);
    /// The entry is about to be deleted.
    pub const DYING: Status = Status(1 << 9);
    /// A flow table forwards the packets, without the hooks of netfilter.
    pub const OFFLOAD: Status = Status(1 << 14);

    /// Returns true if all these bits are set.
    #[must_use]
    pub fn has(self, bits: Status) -> bool {
        self.0 & bits.0 == bits.0
    }
}

/// The state of a tracked connection in its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProtocolState {
    /// The state of a TCP connection (`enum tcp_conntrack`).
    Tcp(u8),
    /// The state of an SCTP association (`enum sctp_conntrack`).
    Sctp(u8),
}

impl ProtocolState {
    /// A TCP connection of which the kernel has only seen SYNs of the client.
    pub const SYN_SENT: ProtocolState = ProtocolState::Tcp(1);
    /// A TCP connection whose server has answered, and whose client has not yet.
    pub const SYN_RECV: ProtocolState = ProtocolState::Tcp(2);
    /// A TCP connection after its handshake.
    pub const ESTABLISHED: ProtocolState = ProtocolState::Tcp(3);
    /// A TCP connection after a reset.
    pub const CLOSE: ProtocolState = ProtocolState::Tcp(8);
}

impl fmt::Display for ProtocolState {
    /// Writes the word of the `conntrack` program: `SYN_SENT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TCP: [&str; 10] = [
            "NONE",
            "SYN_SENT",
            "SYN_RECV",
            "ESTABLISHED",
            "FIN_WAIT",
            "CLOSE_WAIT",
            "LAST_ACK",
            "TIME_WAIT",
            "CLOSE",
            "SYN_SENT2",
        ];
        const SCTP: [&str; 9] = [
            "NONE",
            "CLOSED",
            "COOKIE_WAIT",
            "COOKIE_ECHOED",
            "ESTABLISHED",
            "SHUTDOWN_SENT",
            "SHUTDOWN_RECD",
            "SHUTDOWN_ACK_SENT",
            "HEARTBEAT_SENT",
        ];
        let (names, number) = match self {
            ProtocolState::Tcp(number) => (&TCP[..], *number),
            ProtocolState::Sctp(number) => (&SCTP[..], *number),
        };
        match names.get(usize::from(number)) {
            Some(name) => f.write_str(name),
            None => write!(f, "state {number}"),
        }
    }
}

impl ProtocolState {
    fn parse(attrs: &Attrs<'_>) -> Option<ProtocolState> {
        let info = attrs.find(CTA_PROTOINFO)?.children();
        let state =
            |protocol, kind| info.find(protocol)?.children().find(kind)?.payload.first().copied();
        state(CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE).map(ProtocolState::Tcp).or_else(|| {
            state(CTA_PROTOINFO_SCTP, CTA_PROTOINFO_SCTP_STATE).map(ProtocolState::Sctp)
        })
    }
}

impl Connection {
    /// Decodes an entry. Returns `None` if it is malformed or its protocol has no ports.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>) -> Option<Connection> {
        let original = attrs.find(CTA_TUPLE_ORIG)?;
        let reply = attrs.find(CTA_TUPLE_REPLY)?;
        let (protocol, original_tuple) = parse_tuple(&original)?;
        let zone = attrs.find(CTA_ZONE).and_then(|zone| zone.payload.try_into().ok());
        let zone = zone.map(u16::from_be_bytes);
        let zone = zone.or_else(|| in_zone(&original)).or_else(|| in_zone(&reply));
        let counter = |kind| {
            let counter = attrs.find(kind)?.children();
            let packets = counter.be64(CTA_COUNTERS_PACKETS)?;
            Some(Counter { packets, bytes: counter.be64(CTA_COUNTERS_BYTES)? })
        };
        Some(Connection {
            protocol,
            original: original_tuple,
            reply: parse_tuple(&reply)?.1,
            state: ProtocolState::parse(attrs),
            status: Status(attrs.be32(CTA_STATUS).unwrap_or(0)),
            timeout: Duration::from_secs(attrs.be32(CTA_TIMEOUT).unwrap_or(0).into()),
            mark: attrs.be32(CTA_MARK).unwrap_or(0),
            zone: zone.unwrap_or(0),
            counters: counter(CTA_COUNTERS_ORIG).zip(counter(CTA_COUNTERS_REPLY)),
        })
    }

    /// Returns true if NAT changed the destination, so that the packets do not go where the client
    /// sends them.
    #[must_use]
    pub fn is_translated(&self) -> bool {
        self.reply.source != self.original.destination
    }

    /// Returns true if no packet has come back.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        !self.status.has(Status::SEEN_REPLY)
    }
}

/// The destination to which a client sends the packets of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The protocol number in the IP header.
    pub protocol: u8,
    /// The address.
    pub address: IpAddr,
    /// The port; `None` for every port.
    pub port: Option<u16>,
}

impl Destination {
    /// Returns true if the client sends the packets of this connection there.
    #[must_use]
    pub fn is_of(&self, connection: &Connection) -> bool {
        let to = connection.original.destination;
        connection.protocol == self.protocol
            && to.ip() == self.address
            && self.port.is_none_or(|port| to.port() == port)
    }

    pub(super) fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Appends a filter to a dump request. For IPv6 it is without the address, because the kernel's
    /// match is inverted (see [`Filter`](super::Filter)).
    pub(super) fn put(&self, body: &mut Vec<u8>) {
        let mut flags = CTA_FILTER_F_CTA_PROTO_NUM;
        nest(body, CTA_TUPLE_ORIG, |tuple| {
            if let IpAddr::V4(address) = self.address {
                nest(tuple, CTA_TUPLE_IP, |ip| put(ip, CTA_IP_V4_DST, &address.octets()));
                flags |= CTA_FILTER_F_CTA_IP_DST;
            }
            nest(tuple, CTA_TUPLE_PROTO, |transport| {
                put(transport, CTA_PROTO_NUM, &[self.protocol]);
                if let Some(port) = self.port {
                    put(transport, CTA_PROTO_DST_PORT, &port.to_be_bytes());
                    flags |= CTA_FILTER_F_CTA_PROTO_DST_PORT;
                }
            });
        });
        // In host byte order, unlike all other numbers of this interface.
        nest(body, CTA_FILTER, |filter| put(filter, CTA_FILTER_ORIG_FLAGS, &flags.to_ne_bytes()));
    }
}

/// Appends the tuple of the original direction, which identifies an entry of the default zone.
pub(super) fn put_original(body: &mut Vec<u8>, protocol: u8, original: &Tuple) {
    put_tuple(body, CTA_TUPLE_ORIG, protocol, original);
}

/// The size of the connection tracking table, and its losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The number of entries of this network namespace.
    pub entries: u32,
    /// The maximum number of entries of this network namespace (`net.netfilter.nf_conntrack_max`),
    /// 0 for no limit; `None` before Linux 4.18. Older kernels have one setting for all namespaces,
    /// and still compare it with the number of each.
    pub limit: Option<u32>,
    /// The packets of new connections that the kernel dropped, since the namespace exists: the table
    /// was full, or there was no memory.
    pub dropped: u64,
    /// The unanswered or unassured entries that the kernel deleted to make room.
    pub early_dropped: u64,
    /// The entries that the kernel did not insert because another one has the same tuple. The packet
    /// was dropped.
    pub insert_failed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_words_of_conntrack() {
        let words = [1, 2, 3, 8].map(|number| ProtocolState::Tcp(number).to_string());
        assert_eq!(words, ["SYN_SENT", "SYN_RECV", "ESTABLISHED", "CLOSE"]);
        assert_eq!(ProtocolState::Sctp(4).to_string(), "ESTABLISHED");
        assert_eq!(ProtocolState::Tcp(200).to_string(), "state 200");
    }

    #[test]
    fn filter_has_an_address_for_ipv4_only() {
        for (address, flags) in [("10.96.12.5", 0x2a_u32), ("fd00::5", 0x28)] {
            let address = address.parse().expect("an address");
            let mut body = Vec::new();
            Destination { protocol: 6, address, port: Some(80) }.put(&mut body);
            let attrs = Attrs::new(&body);
            let filter = attrs.find(CTA_FILTER).expect("a filter").children();
            let written = filter.find(CTA_FILTER_ORIG_FLAGS).expect("flags").payload;
            assert_eq!(written, flags.to_ne_bytes());
            let tuple = attrs.find(CTA_TUPLE_ORIG).expect("a tuple").children();
            assert_eq!(tuple.find(CTA_TUPLE_IP).is_some(), address.is_ipv4());
        }
    }
}
