//! Entries of connection tracking: read from a dump, and named in the messages that ask for them.

use std::net::{IpAddr, SocketAddr};

use crate::Family;
use crate::attr::{self, Attr, Attrs, nest, put, put_be32};

use super::uapi::{
    CTA_FILTER, CTA_FILTER_F_CTA_PROTO_DST_PORT, CTA_FILTER_F_CTA_PROTO_NUM, CTA_FILTER_ORIG_FLAGS,
    CTA_ID, CTA_IP_V4_DST, CTA_IP_V4_SRC, CTA_IP_V6_DST, CTA_IP_V6_SRC, CTA_PROTO_DST_PORT,
    CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTOINFO, CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE,
    CTA_STATUS, CTA_STATUS_MASK, CTA_TUPLE_IP, CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, CTA_TUPLE_REPLY,
    CTA_TUPLE_ZONE, CTA_ZONE, IPS_SEEN_REPLY, TCP_CONNTRACK_SYN_SENT,
};

/// One direction of a flow, as its packets look where connection tracking sees them first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Where the packets of this direction come from.
    pub source: SocketAddr,
    /// Where they are sent to.
    pub destination: SocketAddr,
}

/// An entry of a protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The number of the protocol in the IP header.
    pub protocol: u8,
    /// The direction of the first packet: its destination is where the client sent it to.
    pub original: Tuple,
    /// The direction of the answers: their source is where address translation sent the client to.
    pub reply: Tuple,
    /// True if the entry belongs to a zone other than the default one, into which a virtual switch
    /// or a rule (`ct zone set`) has put it.
    pub zoned: bool,
    /// True for a TCP connection of which a SYN was seen, perhaps several times, and no answer.
    pub half_open: bool,
    /// The kernel's name for it (`CTA_ID`), as it was sent.
    pub id: [u8; 4],
}

impl Entry {
    /// Reads an entry of a dump; `None` if its protocol has no ports.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>) -> Option<Entry> {
        let original = attrs.find(CTA_TUPLE_ORIG)?;
        let reply = attrs.find(CTA_TUPLE_REPLY)?;
        let in_zone = |tuple: &Attr<'_>| tuple.children().find(CTA_TUPLE_ZONE).is_some();
        let (protocol, original_tuple) = parse_tuple(&original)?;
        let (_, reply_tuple) = parse_tuple(&reply)?;
        Some(Entry {
            protocol,
            original: original_tuple,
            reply: reply_tuple,
            half_open: i32::from(protocol) == libc::IPPROTO_TCP && is_half_open(attrs),
            zoned: attrs.find(CTA_ZONE).is_some() || in_zone(&original) || in_zone(&reply),
            id: attrs.find(CTA_ID)?.payload.try_into().ok()?,
        })
    }

    /// Appends what names this entry in a message that deletes it.
    ///
    /// It is named by its reply direction, with which the kernel finds it as well: that one holds
    /// the endpoint, so that an entry which the same client has got since, to an endpoint that
    /// lives, is another one. The id alone would not do: it is computed from the original
    /// direction and a place in memory that may be used again (`nf_ct_get_id`).
    ///
    /// A message of this kind *without* a tuple would delete all entries.
    pub(crate) fn put_name(&self, body: &mut Vec<u8>) {
        let Tuple { source, destination } = self.reply;
        nest(body, CTA_TUPLE_REPLY, |tuple| {
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
                put(transport, CTA_PROTO_NUM, &[self.protocol]);
                put(transport, CTA_PROTO_SRC_PORT, &source.port().to_be_bytes());
                put(transport, CTA_PROTO_DST_PORT, &destination.port().to_be_bytes());
            });
        });
        put(body, CTA_ID, &self.id);
    }

    /// False if its packets go where the client sends them.
    #[must_use]
    pub fn is_translated(&self) -> bool {
        self.reply.source != self.original.destination
    }

    /// Returns its family.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.reply.source.is_ipv4() { Family::Ip } else { Family::Ip6 }
    }
}

/// True if both the status and the state of TCP say that nothing was answered. A connection that
/// connection tracking met in the middle may have seen one direction only, too; its state is another.
fn is_half_open(attrs: &Attrs<'_>) -> bool {
    let status = attrs.find(CTA_STATUS).and_then(|status| status.be32());
    let state = || {
        let tcp = attrs.find(CTA_PROTOINFO)?.children().find(CTA_PROTOINFO_TCP)?;
        tcp.children().find(CTA_PROTOINFO_TCP_STATE)?.payload.first().copied()
    };
    status.is_some_and(|status| status & IPS_SEEN_REPLY == 0)
        && state() == Some(TCP_CONNTRACK_SYN_SENT)
}

/// Protocol, and addresses with ports.
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

/// The entries that a listing is about.
///
/// It has no addresses: for IPv6 the kernel's filter has them the wrong way round, up to 6.18 at
/// least. `ctnetlink_filter_match_tuple` skips the entries that *have* the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// The number of the protocol in the IP header (`CTA_FILTER`, kernel 5.8).
    pub protocol: u8,
    /// The port that the client sent to; `None` for every port.
    pub port: Option<u16>,
    /// Only entries of which no answer was seen (`CTA_STATUS_MASK`, kernel 5.15).
    pub unanswered: bool,
}

impl Filter {
    /// Appends the filter to a dump's request. (In one that deletes, an older kernel would ignore it
    /// and delete all entries.)
    pub(super) fn put(&self, body: &mut Vec<u8>) {
        if self.unanswered {
            put_be32(body, CTA_STATUS, 0);
            put_be32(body, CTA_STATUS_MASK, IPS_SEEN_REPLY);
        }
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
        // In host order, unlike all other numbers of this interface.
        nest(body, CTA_FILTER, |filter| put(filter, CTA_FILTER_ORIG_FLAGS, &flags.to_ne_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry as from a dump: who sent to where, and who answers.
    fn entry_of(protocol: u8, client: &str, destination: &str, endpoint: &str) -> Entry {
        let parse = |text: &str| -> SocketAddr { text.parse().expect("address:port") };
        let original = Tuple { source: parse(client), destination: parse(destination) };
        let reply = Tuple { source: parse(endpoint), destination: parse(client) };
        Entry { protocol, original, reply, zoned: false, half_open: false, id: [0, 0, 0, 1] }
    }

    /// An entry as the kernel sends it: both directions (here the same one), then others.
    fn dumped(entry: &Entry, more: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut name = Vec::new();
        entry.put_name(&mut name);
        let tuple = Attrs::new(&name).find(CTA_TUPLE_REPLY).expect("a tuple").payload;
        let mut body = Vec::new();
        put(&mut body, CTA_TUPLE_ORIG | libc::NLA_F_NESTED as u16, tuple);
        body.extend_from_slice(&name);
        more(&mut body);
        body
    }

    #[test]
    fn what_names_an_entry_is_read_as_its_reply() {
        for (client, endpoint) in
            [("192.0.2.1:40000", "10.244.0.1:53"), ("[2001:db8::1]:40000", "[fd00::1]:53")]
        {
            let entry = entry_of(17, client, endpoint, endpoint);
            let body = dumped(&entry, |_| {});
            let read = Entry::parse(&Attrs::new(&body)).expect("an entry");
            assert_eq!(read, Entry { original: entry.reply, ..entry });
        }
    }

    #[test]
    fn half_open_is_tcp_that_saw_a_syn_and_no_answer() {
        for (protocol, status, state, half_open) in [
            (6, Some(0), Some(1), true),
            // Translated, confirmed and so on.
            (6, Some(0x1a8), Some(1), true),
            (6, Some(IPS_SEEN_REPLY), Some(1), false),
            (6, Some(0x18e), Some(3), false),
            (6, Some(0x188), Some(3), false),
            (6, Some(0), None, false),
            (6, None, Some(1), false),
            (17, Some(0), Some(1), false),
        ] {
            let entry = entry_of(protocol, "192.0.2.1:1", "10.96.0.1:53", "10.244.0.1:53");
            let body = dumped(&entry, |body| {
                status.into_iter().for_each(|status| put_be32(body, CTA_STATUS, status));
                nest(body, CTA_PROTOINFO, |info| {
                    nest(info, CTA_PROTOINFO_TCP, |tcp| {
                        state.iter().for_each(|state| put(tcp, CTA_PROTOINFO_TCP_STATE, &[*state]));
                    });
                });
            });
            let read = Entry::parse(&Attrs::new(&body)).expect("an entry");
            assert_eq!(read.half_open, half_open, "{protocol} {status:?} {state:?}");
        }
    }

    #[test]
    fn zones_are_seen_wherever_they_stand() {
        let entry = entry_of(17, "192.0.2.1:1", "10.96.0.1:53", "10.244.0.1:53");
        let zone = |body: &mut Vec<u8>| put(body, CTA_ZONE, &[0, 5]);
        let read = Entry::parse(&Attrs::new(&dumped(&entry, zone)));
        assert!(read.expect("an entry").zoned);
        let mut body = dumped(&entry, |_| {});
        let whole = body.clone();
        let original = Attrs::new(&whole).find(CTA_TUPLE_ORIG).expect("a tuple").payload;
        nest(&mut body, CTA_TUPLE_ORIG, |tuple| {
            tuple.extend_from_slice(original);
            put(tuple, CTA_TUPLE_ZONE, &[0, 5]);
        });
        let body = &body[4 + original.len()..];
        assert!(Entry::parse(&Attrs::new(body)).expect("an entry").zoned);
    }

    #[test]
    fn entries_without_ports_and_malformed_ones_are_none() {
        let entry = entry_of(17, "192.0.2.1:1", "10.96.0.1:53", "10.244.0.1:53");
        let body = dumped(&entry, |_| {});
        for length in 0..body.len() {
            assert_eq!(Entry::parse(&Attrs::new(&body[..length])), None, "{length}");
        }
        let mut icmp = Vec::new();
        for direction in [CTA_TUPLE_ORIG, CTA_TUPLE_REPLY] {
            nest(&mut icmp, direction, |tuple| {
                nest(tuple, CTA_TUPLE_IP, |addresses| {
                    put(addresses, CTA_IP_V4_SRC, &[10, 0, 0, 1]);
                    put(addresses, CTA_IP_V4_DST, &[10, 0, 0, 2]);
                });
                nest(tuple, CTA_TUPLE_PROTO, |transport| put(transport, CTA_PROTO_NUM, &[1]));
            });
        }
        put_be32(&mut icmp, CTA_ID, 1);
        assert_eq!(Entry::parse(&Attrs::new(&icmp)), None);
    }
}
