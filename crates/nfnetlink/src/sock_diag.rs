//! Sockets that wait for packets from any peer: listening TCP and SCTP sockets, and UDP sockets that
//! are bound and not connected.
//!
//! Source: `include/uapi/linux/inet_diag.h` and `sock_diag.h`.
//!
//! ```
//! use std::net::TcpListener;
//!
//! use nfnetlink::sock_diag::waiting;
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let found = waiting(6)?;
//! assert!(found.iter().any(|socket| (socket.address, socket.port) == (address.ip(), address.port())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::{IpAddr, Ipv4Addr};

use crate::Error;
use crate::attr::ip;
use crate::message::Message;
use crate::socket::{Bus, NetlinkSocket, Request};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `struct inet_diag_msg`.
const HEADER: usize = 72;
/// `INET_DIAG_SKV6ONLY`, which the kernel adds for IPv6 sockets.
const ATTR_V6_ONLY: u16 = 11;
/// `TCP_CLOSE`: the state of a UDP socket without a peer.
const CLOSE: u8 = 7;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;

/// A socket that waits for packets from any peer, at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingSocket {
    /// The local address, of SCTP the first; unspecified for all addresses. IPv4 for an IPv4 address in
    /// IPv6 form.
    pub address: IpAddr,
    /// The local port.
    pub port: u16,
    /// True if an IPv6 socket on all addresses leaves the port free for IPv4 (`IPV6_V6ONLY`).
    pub v6_only: bool,
    /// The index of the interface that the socket is bound to, if any.
    pub interface: Option<u32>,
    /// The user who made the socket.
    pub uid: u32,
    /// The inode, which `/proc/PID/fd` shows as `socket:[INODE]`.
    pub inode: u32,
}

impl WaitingSocket {
    /// Reads a socket in that state; `None` for another state, or a malformed message.
    #[must_use]
    pub fn parse(message: &Message<'_>, wanted: u8) -> Option<WaitingSocket> {
        let header: &[u8; HEADER] = message.payload.first_chunk()?;
        let &[family, state, _, _, port0, port1, ..] = header;
        let word = |at: usize| {
            let bytes = header.get(at..)?.first_chunk()?;
            Some(u32::from_ne_bytes(*bytes))
        };
        let length = match i32::from(family) {
            _ if state != wanted => return None,
            libc::AF_INET => 4,
            libc::AF_INET6 => 16,
            _ => return None,
        };
        let v6_only = message.attrs_behind(HEADER).find(ATTR_V6_ONLY);
        Some(WaitingSocket {
            address: ip(header.get(8..8 + length)?)?.to_canonical(),
            port: u16::from_be_bytes([port0, port1]),
            v6_only: v6_only.is_some_and(|it| it.payload.first().is_some_and(|it| *it != 0)),
            interface: word(40).filter(|index| *index != 0),
            uid: word(64)?,
            inode: word(68)?,
        })
    }

    /// Returns true if the socket accepts packets to that address, on the interface it is bound to.
    #[must_use]
    pub fn accepts(&self, address: IpAddr) -> bool {
        match self.address {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.is_ipv4(),
            IpAddr::V6(own) if own.is_unspecified() => address.is_ipv6() || !self.v6_only,
            own => own == address,
        }
    }
}

/// Lists the sockets of both families that wait for packets of a protocol (`IPPROTO_*`) from any peer,
/// in the network namespace of this thread. Needs no privilege. The kernel may load a module to answer,
/// such as `tcp_diag`.
///
/// # Errors
/// [`Error::Open`] if the kernel has no `NETLINK_SOCK_DIAG`; [`Error::Request`] with `ENOENT` if it does
/// not have that module.
pub fn waiting(protocol: u8) -> Result<Vec<WaitingSocket>, Error> {
    let list = Request::dump("list sockets", BY_FAMILY);
    let state = if i32::from(protocol) == libc::IPPROTO_UDP { CLOSE } else { LISTEN };
    let mut socket = NetlinkSocket::open(Bus::SockDiag)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let body = |body: &mut Vec<u8>| {
            // `struct inet_diag_req_v2`, with no attributes, for any address and port.
            body.extend_from_slice(&[family, protocol, 0, 0]);
            body.extend_from_slice(&(1_u32 << state).to_ne_bytes());
            body.extend_from_slice(&[0; 48]);
        };
        let parse = |message: Message<'_>| WaitingSocket::parse(&message, state);
        found.extend(socket.list(list, body, parse)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_on_all_ipv6_addresses_accepts_ipv4_unless_it_is_v6_only() {
        let socket = |own: &str, v6_only| WaitingSocket {
            address: own.parse().expect("an address"),
            port: 1,
            v6_only,
            interface: None,
            uid: 0,
            inode: 1,
        };
        for (own, v6_only, to, expected) in [
            ("::", false, "192.0.2.1", true),
            ("::", true, "192.0.2.1", false),
            ("::", true, "2001:db8::1", true),
            ("0.0.0.0", false, "192.0.2.1", true),
            ("0.0.0.0", false, "2001:db8::1", false),
            ("192.0.2.1", false, "192.0.2.1", true),
            ("192.0.2.1", false, "192.0.2.2", false),
        ] {
            let accepts = socket(own, v6_only).accepts(to.parse().expect("an address"));
            assert_eq!(accepts, expected, "{own} {v6_only} {to}");
        }
    }
}
