//! Datagrams with both their addresses: what arrives tells where it was sent to, and an answer is
//! sent from there, as it must be on a host with several addresses.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType,
    SockaddrStorage, recvmsg, sendmsg, setsockopt, socket, sockopt,
};

/// A raw SCTP socket of one family in the calling thread's namespace.
pub(crate) fn sctp_socket(family: AddressFamily) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Raw, flags, SockProtocol::Sctp).context("cannot open a raw socket")
}

/// Asks for the destination address of what arrives.
pub(crate) fn tell_destination(socket: &OwnedFd, family: AddressFamily) -> Result<()> {
    if family == AddressFamily::Inet {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    Ok(())
}

/// A datagram that has arrived.
pub(crate) struct Datagram {
    pub(crate) payload: Vec<u8>,
    /// The sender; the port is 0 on raw sockets.
    pub(crate) source: SocketAddr,
    /// The address of this host that it was sent to.
    destination: Option<ControlMessageOwned>,
}

impl Datagram {
    /// Takes the next datagram, if there is one.
    pub(crate) fn receive(socket: &OwnedFd) -> Option<Self> {
        let mut buffer = [0; 2048];
        let mut space = nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let message = recvmsg::<SockaddrStorage>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::empty(),
        )
        .ok()?;
        let source = socket_address(message.address.as_ref()?)?;
        let destination = message.cmsgs().ok()?.find(|control| {
            matches!(
                control,
                ControlMessageOwned::Ipv4PacketInfo(_) | ControlMessageOwned::Ipv6PacketInfo(_)
            )
        });
        let length = message.bytes;
        Some(Self { payload: buffer[..length].to_vec(), source, destination })
    }

    /// Sends `payload` back from the address that this datagram was sent to. What cannot be sent
    /// is lost, as datagrams are.
    pub(crate) fn answer(&self, socket: &OwnedFd, payload: &[u8]) {
        // Only the address is kept: the answer takes the interface that routing says.
        let (v4, v6);
        let control = match self.destination {
            Some(ControlMessageOwned::Ipv4PacketInfo(info)) => {
                v4 = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: info.ipi_addr, ..info };
                Some(ControlMessage::Ipv4PacketInfo(&v4))
            }
            Some(ControlMessageOwned::Ipv6PacketInfo(info)) => {
                v6 = libc::in6_pktinfo { ipi6_ifindex: 0, ..info };
                Some(ControlMessage::Ipv6PacketInfo(&v6))
            }
            _ => None,
        };
        let to = SockaddrStorage::from(self.source);
        let parts = [IoSlice::new(payload)];
        let _ =
            sendmsg(socket.as_raw_fd(), &parts, control.as_slice(), MsgFlags::empty(), Some(&to));
    }
}

/// What follows the IPv4 header, which raw sockets of that family deliver too.
pub(crate) fn after_ipv4_header(packet: &[u8]) -> &[u8] {
    let header = packet.first().map_or(0, |byte| usize::from(byte & 0xf) * 4);
    packet.get(header..).unwrap_or_default()
}

pub(crate) fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    address.as_sockaddr_in6().map(|v6| SocketAddr::new(v6.ip().into(), v6.port()))
}

/// The wildcard address of the family of `ip`.
pub(crate) fn wildcard_like(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() }
}
