//! The route of one packet, as the kernel would choose it (`RTM_GETROUTE`).

use std::net::IpAddr;

use nix::errno::Errno;

use crate::Error;
use crate::attr::{self, Attrs, put};
use crate::message::Message;
use crate::socket::{Bus, NetlinkSocket, Request};

/// The size of `struct rtmsg`, and the offset of `rtm_type`.
const ROUTE_HEADER: usize = 12;
const ROUTE_TYPE: usize = 7;
/// `RTM_F_FIB_MATCH`: the answer is the entry of the routing table, not the route of the packet.
const FIB_MATCH: u32 = 0x2000;
/// The offset of `rtm_dst_len`.
const PREFIX_LENGTH: usize = 1;

/// A packet to route.
///
/// ```
/// use nfnetlink::route::{self, RouteAnswer, RouteKind, RouteQuery};
///
/// let to = RouteQuery::to("127.0.0.1".parse()?);
/// // The loopback interface of a new namespace is down, and no address is local then.
/// if let RouteAnswer::Route(route) = route::route_to(to)? {
///     assert_eq!(route.kind, RouteKind::Local);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteQuery {
    /// The destination address.
    pub destination: IpAddr,
    /// The source address. Without `input`, it has to be an address of this node.
    pub source: Option<IpAddr>,
    /// The index of the interface on which the packet arrives; `None` if this node sends it. The
    /// kernel also applies its reverse path filter and the forwarding setting then.
    pub input: Option<u32>,
    /// The packet mark, which policy routing may match; 0 for none.
    pub mark: u32,
}

impl RouteQuery {
    /// Returns a query for a packet that this node sends.
    #[must_use]
    pub fn to(destination: IpAddr) -> RouteQuery {
        RouteQuery { destination, source: None, input: None, mark: 0 }
    }
}

/// The decision of the kernel about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAnswer {
    /// The packet takes this route.
    Route(Route),
    /// The kernel drops the packet, with this error. It may also send an ICMP error.
    ///
    /// `ENETUNREACH` says that there is no route. `EHOSTUNREACH` says that the route is of type
    /// unreachable, or that the packet arrived and would have to be forwarded, which is off.
    /// `EACCES` is a prohibit route, `EINVAL` a blackhole route or an address that is not valid
    /// here, such as a foreign source. `EXDEV` and on some kernels `EINVAL` come from the reverse
    /// path filter.
    Refused(Errno),
}

/// A route of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The kind of the route.
    pub kind: RouteKind,
    /// The next router, which may be of the other address family; `None` if the destination is a
    /// neighbour.
    pub gateway: Option<IpAddr>,
    /// The index of the outgoing interface.
    pub output: Option<u32>,
    /// The source address that the kernel would choose, or that the route prefers.
    pub source: Option<IpAddr>,
}

/// The type of a route (`RTN_*`). For the types that drop packets, the answer is
/// [`RouteAnswer::Refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// To a neighbour or a router.
    Unicast,
    /// To this node.
    Local,
    /// To several nodes: broadcast, anycast, multicast.
    Other,
}

/// Asks the kernel for the route of a packet, in the network namespace of this thread. Needs no
/// privilege.
///
/// # Errors
/// [`Error::Request`] with `ENODEV` if there is no interface with the index `input`; other errors
/// that are no decision about the packet.
pub fn route_to(query: RouteQuery) -> Result<RouteAnswer, Error> {
    let route = look_up(query, 0, |message| Route::parse(&message))?;
    Ok(route.map_or_else(RouteAnswer::Refused, RouteAnswer::Route))
}

/// Returns the length of the prefix whose route a packet takes: 0 for a default route, `None` if the
/// kernel drops the packet.
///
/// # Errors
/// As [`route_to`].
pub fn prefix_length(query: RouteQuery) -> Result<Option<u8>, Error> {
    let length = |message: Message<'_>| message.payload.get(PREFIX_LENGTH).copied();
    Ok(look_up(query, FIB_MATCH, length)?.ok())
}

/// Returns what the kernel answers, or the error by which it drops the packet.
fn look_up<T>(
    query: RouteQuery,
    flags: u32,
    parse: impl Fn(Message<'_>) -> Option<T>,
) -> Result<Result<T, Errno>, Error> {
    let ask = Request { name: "look up the route", kind: libc::RTM_GETROUTE, flags: 0 };
    let mut found = None;
    let take = |message: Message<'_>| found = parse(message);
    match NetlinkSocket::open(Bus::Route)?.request(ask, |body| query.put(body, flags), take) {
        Err(Error::Request { errno, .. }) if is_decision(errno) => Ok(Err(errno)),
        Err(error) => Err(error),
        Ok(()) => found.map(Ok).ok_or(Error::Malformed("a route without its header")),
    }
}

/// Returns true for the errors by which the kernel's routing drops packets.
fn is_decision(errno: Errno) -> bool {
    [
        Errno::ENETUNREACH,
        Errno::EHOSTUNREACH,
        Errno::EACCES,
        Errno::EINVAL,
        Errno::EXDEV,
        // A throw route without a further table.
        Errno::EAGAIN,
    ]
    .contains(&errno)
}

impl RouteQuery {
    /// Appends `struct rtmsg` and the attributes of the query.
    fn put(&self, body: &mut Vec<u8>, flags: u32) {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let source_bits = self.source.map_or(0, bits);
        let family = if self.destination.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        body.extend_from_slice(&[family as u8, bits(self.destination), source_bits, 0]);
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(&flags.to_ne_bytes());
        put_ip(body, libc::RTA_DST, self.destination);
        if let Some(source) = self.source {
            put_ip(body, libc::RTA_SRC, source);
        }
        if let Some(index) = self.input {
            put(body, libc::RTA_IIF, &index.to_ne_bytes());
        }
        if self.mark != 0 {
            put(body, libc::RTA_MARK, &self.mark.to_ne_bytes());
        }
    }
}

/// Appends an attribute with the bytes of an address.
pub(super) fn put_ip(body: &mut Vec<u8>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => put(body, kind, &address.octets()),
        IpAddr::V6(address) => put(body, kind, &address.octets()),
    }
}

/// Reads an attribute of rtnetlink, whose numbers are in host byte order.
pub(super) fn number(attrs: &Attrs<'_>, kind: u16) -> Option<u32> {
    attrs.find(kind)?.payload.try_into().ok().map(u32::from_ne_bytes)
}

impl Route {
    pub(crate) fn parse(message: &Message<'_>) -> Option<Route> {
        let header = message.payload.get(..ROUTE_HEADER)?;
        let attrs = message.attrs_behind(ROUTE_HEADER);
        let address = |kind| attr::ip(attrs.find(kind)?.payload);
        // `struct rtvia`: the family in two bytes, then the address.
        let via = || attr::ip(attrs.find(libc::RTA_VIA)?.payload.get(2..)?);
        Some(Route {
            kind: match header[ROUTE_TYPE] {
                libc::RTN_UNICAST => RouteKind::Unicast,
                libc::RTN_LOCAL => RouteKind::Local,
                _ => RouteKind::Other,
            },
            gateway: address(libc::RTA_GATEWAY).or_else(via),
            output: number(&attrs, libc::RTA_OIF),
            source: address(libc::RTA_PREFSRC),
        })
    }

    /// Returns the address to which the kernel sends the packet on the link: the gateway, or the
    /// destination itself.
    #[must_use]
    pub fn next_hop(&self, destination: IpAddr) -> IpAddr {
        self.gateway.unwrap_or(destination)
    }
}
