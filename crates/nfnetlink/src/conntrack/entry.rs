//! Entries of connection tracking: decoded from a dump, and identified in requests.

use std::net::{IpAddr, SocketAddr};

use crate::Family;
use crate::attr::{self, Attr, Attrs, nest, put};

use super::uapi::{
    CTA_FILTER, CTA_FILTER_F_CTA_PROTO_DST_PORT, CTA_FILTER_F_CTA_PROTO_NUM, CTA_FILTER_ORIG_FLAGS,
    CTA_ID, CTA_IP_V4_DST, CTA_IP_V4_SRC, CTA_IP_V6_DST, CTA_IP_V6_SRC, CTA_PROTO_DST_PORT,
    CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_STATUS, CTA_TUPLE_IP, CTA_TUPLE_ORIG, CTA_TUPLE_PROTO,
    CTA_TUPLE_REPLY, CTA_TUPLE_ZONE, CTA_ZONE, IPS_SEEN_REPLY,
};

/// One direction of a flow, with the addresses at the hook where connection tracking first sees its
/// packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The address and port that packets of this direction come from.
    pub source: SocketAddr,
    /// The address and port that packets of this direction are sent to.
    pub destination: SocketAddr,
}

/// A conntrack entry of a protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The protocol number in the IP header (`IPPROTO_*`).
    pub protocol: u8,
    /// The direction of the first packet: its destination is the address that the client sent it
    /// to.
    pub original: Tuple,
    /// The direction of the replies: their source is the address that NAT redirected the client to.
    pub reply: Tuple,
    /// True if the entry is in a zone other than the default one. A virtual switch or a rule
    /// (`ct zone set`) puts entries there.
    pub zoned: bool,
    /// True if the kernel has seen a packet of the reply direction (`IPS_SEEN_REPLY`). False for a
    /// connection picked up in the middle, as long as only the client sends.
    pub replied: bool,
    /// The kernel's identifier of the entry (`CTA_ID`), in the bytes that the kernel sent.
    pub id: [u8; 4],
}

impl Entry {
    /// Decodes an entry of a dump. Returns `None` if it is malformed or its protocol has no ports.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>) -> Option<Entry> {
        let original = attrs.find(CTA_TUPLE_ORIG)?;
        let reply = attrs.find(CTA_TUPLE_REPLY)?;
        let (protocol, original_tuple) = parse_tuple(&original)?;
        let (_, reply_tuple) = parse_tuple(&reply)?;
        Some(Entry {
            protocol,
            original: original_tuple,
            reply: reply_tuple,
            replied: has_reply(attrs) == Some(true),
            zoned: attrs.find(CTA_ZONE).is_some()
                || in_zone(&original).is_some()
                || in_zone(&reply).is_some(),
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

    /// Returns the address family of the reply's source, that is, of the endpoint.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.reply.source.is_ipv4() { Family::Ip } else { Family::Ip6 }
    }
}

/// Returns whether the kernel has seen a reply; `None` without a status.
fn has_reply(attrs: &Attrs<'_>) -> Option<bool> {
    Some(attrs.be32(CTA_STATUS)? & IPS_SEEN_REPLY != 0)
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
pub(super) fn in_zone(tuple: &Attr<'_>) -> Option<u16> {
    let zone = tuple.children().find(CTA_TUPLE_ZONE)?;
    Some(zone.payload.try_into().map_or(0, u16::from_be_bytes))
}

/// Decodes the protocol number, and the addresses with ports.
pub(super) fn parse_tuple(tuple: &Attr<'_>) -> Option<(u8, Tuple)> {
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

/// A filter for the entries of a dump.
///
/// The filter has no addresses: for IPv6 the kernel's match is inverted, up to Linux 6.18 at least.
/// `ctnetlink_filter_match_tuple` skips the entries that *have* the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// The protocol number in the IP header (`CTA_FILTER`, Linux 5.8).
    pub protocol: u8,
    /// The destination port of the original direction; `None` for every port.
    pub port: Option<u16>,
}

impl Filter {
    /// Appends the filter to a dump request. (In a delete request, an older kernel would ignore it
    /// and delete all entries.)
    pub(super) fn put(&self, body: &mut Vec<u8>) {
        let mut flags = CTA_FILTER_F_CTA_PROTO_NUM;
        nest(body, CTA_TUPLE_ORIG, |tuple| {
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
