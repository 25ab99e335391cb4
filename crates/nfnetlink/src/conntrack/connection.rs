//! Entries of connection tracking: decoded, and identified in requests.

use std::net::{IpAddr, SocketAddr};

use crate::attr::{self, Attr, Attrs, nest, put};

use super::uapi::{
    CTA_FILTER, CTA_FILTER_F_CTA_IP_DST, CTA_FILTER_F_CTA_PROTO_DST_PORT,
    CTA_FILTER_F_CTA_PROTO_NUM, CTA_FILTER_ORIG_FLAGS, CTA_ID, CTA_IP_V4_DST, CTA_IP_V4_SRC,
    CTA_IP_V6_DST, CTA_IP_V6_SRC, CTA_PROTO_DST_PORT, CTA_PROTO_NUM, CTA_PROTO_SRC_PORT,
    CTA_STATUS, CTA_TUPLE_IP, CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, CTA_TUPLE_REPLY, CTA_TUPLE_ZONE,
    CTA_ZONE,
};

/// `IPS_SEEN_REPLY`.
const SEEN_REPLY: u32 = 1 << 1;

/// One direction of a flow, with the addresses at the hook where connection tracking first sees its
/// packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The address and port that packets of this direction come from.
    pub source: SocketAddr,
    /// The address and port that packets of this direction are sent to.
    pub destination: SocketAddr,
}

/// A connection or flow that the kernel tracks, of a protocol with ports.
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
    /// The kernel has seen packets in both directions (`IPS_SEEN_REPLY`).
    pub answered: bool,
    /// The zone; 0 is the default one. A virtual switch or a rule (`ct zone set`) puts entries into
    /// others.
    pub zone: u16,
    /// The kernel's identifier of the entry (`CTA_ID`), in the bytes that the kernel sent.
    pub id: [u8; 4],
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
        Some(Connection {
            protocol,
            original: original_tuple,
            reply: parse_tuple(&reply)?.1,
            answered: attrs.be32(CTA_STATUS).unwrap_or(0) & SEEN_REPLY != 0,
            zone: zone.unwrap_or(0),
            id: attrs.find(CTA_ID)?.payload.try_into().ok()?,
        })
    }

    /// Appends the attributes that identify this entry in a request to delete it.
    ///
    /// The tuple of the reply direction identifies it, because that tuple holds the endpoint. A
    /// newer entry of the same client, to a live endpoint, has another reply tuple. The id alone
    /// does not suffice: the kernel computes it from the original direction and a memory address,
    /// which it may reuse (`nf_ct_get_id`).
    ///
    /// A delete request *without* a tuple deletes all entries.
    pub(crate) fn put_name(&self, body: &mut Vec<u8>) {
        put_tuple(body, CTA_TUPLE_REPLY, self.protocol, &self.reply);
        put(body, CTA_ID, &self.id);
    }
}

/// The destination to which a client sends the packets of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The protocol number in the IP header.
    pub protocol: u8,
    /// The address; `None` for every address.
    pub address: Option<IpAddr>,
    /// The port; `None` for every port.
    pub port: Option<u16>,
}

impl Destination {
    /// Returns true if the client sends the packets of this connection there.
    pub(super) fn is_of(&self, connection: &Connection) -> bool {
        let to = connection.original.destination;
        connection.protocol == self.protocol
            && self.address.is_none_or(|address| to.ip() == address)
            && self.port.is_none_or(|port| to.port() == port)
    }

    /// Appends a filter to a dump request (`CTA_FILTER`). For IPv6 it is without the address, because
    /// the kernel's match is inverted, up to Linux 6.18 at least: `ctnetlink_filter_match_tuple` skips
    /// the entries that *have* the address.
    pub(super) fn put(&self, body: &mut Vec<u8>) {
        let mut flags = CTA_FILTER_F_CTA_PROTO_NUM;
        nest(body, CTA_TUPLE_ORIG, |tuple| {
            if let Some(IpAddr::V4(address)) = self.address {
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

/// Appends the tuple of a direction.
pub(super) fn put_tuple(body: &mut Vec<u8>, direction: u16, protocol: u8, tuple: &Tuple) {
    let Tuple { source, destination } = tuple;
    nest(body, direction, |tuple| {
        nest(tuple, CTA_TUPLE_IP, |addresses| {
            match source.ip() {
                IpAddr::V4(source) => put(addresses, CTA_IP_V4_SRC, &source.octets()),
                IpAddr::V6(source) => put(addresses, CTA_IP_V6_SRC, &source.octets()),
            }
            match destination.ip() {
                IpAddr::V4(to) => put(addresses, CTA_IP_V4_DST, &to.octets()),
                IpAddr::V6(to) => put(addresses, CTA_IP_V6_DST, &to.octets()),
            }
        });
        nest(tuple, CTA_TUPLE_PROTO, |transport| {
            put(transport, CTA_PROTO_NUM, &[protocol]);
            put(transport, CTA_PROTO_SRC_PORT, &source.port().to_be_bytes());
            put(transport, CTA_PROTO_DST_PORT, &destination.port().to_be_bytes());
        });
    });
}

/// Returns the zone of a direction, if it has one of its own.
fn in_zone(tuple: &Attr<'_>) -> Option<u16> {
    let zone = tuple.children().find(CTA_TUPLE_ZONE)?;
    Some(zone.payload.try_into().map_or(0, u16::from_be_bytes))
}

/// Decodes the protocol number, and the addresses with ports.
fn parse_tuple(tuple: &Attr<'_>) -> Option<(u8, Tuple)> {
    let addresses = tuple.children().find(CTA_TUPLE_IP)?.children();
    let address = |v4, v6| attr::ip(addresses.find(v4).or(addresses.find(v6))?.payload);
    let transport = tuple.children().find(CTA_TUPLE_PROTO)?.children();
    let port = |kind| Some(u16::from_be_bytes(transport.find(kind)?.payload.try_into().ok()?));
    let &[protocol] = transport.find(CTA_PROTO_NUM)?.payload else { return None };
    let source = SocketAddr::new(address(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?, port(CTA_PROTO_SRC_PORT)?);
    let destination =
        SocketAddr::new(address(CTA_IP_V4_DST, CTA_IP_V6_DST)?, port(CTA_PROTO_DST_PORT)?);
    Some((protocol, Tuple { source, destination }))
}

/// The size of the connection tracking table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The number of entries of this network namespace.
    pub entries: u32,
    /// The maximum number of entries of this network namespace (`net.netfilter.nf_conntrack_max`),
    /// 0 for no limit; `None` before Linux 4.18. Older kernels have one setting for all namespaces,
    /// and still compare it with the number of each.
    pub limit: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_has_an_address_for_ipv4_only() {
        for (address, flags) in [("10.96.12.5", 0x2a_u32), ("fd00::5", 0x28)] {
            let address: IpAddr = address.parse().expect("an address");
            let mut body = Vec::new();
            Destination { protocol: 6, address: Some(address), port: Some(80) }.put(&mut body);
            let attrs = Attrs::new(&body);
            let filter = attrs.find(CTA_FILTER).expect("a filter").children();
            let written = filter.find(CTA_FILTER_ORIG_FLAGS).expect("flags").payload;
            assert_eq!(written, flags.to_ne_bytes());
            let tuple = attrs.find(CTA_TUPLE_ORIG).expect("a tuple").children();
            assert_eq!(tuple.find(CTA_TUPLE_IP).is_some(), address.is_ipv4());
        }
    }
}
