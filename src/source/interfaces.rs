//! The addresses of the node's own interfaces, as they come and go.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use shunt_core::model::Change;

/// Tells when addresses appear or vanish, by the kernel's own events (rtnetlink): no polling.
pub struct Interfaces {
    events: OwnedFd,
}

impl Interfaces {
    /// Subscribes in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel gives no socket for routing messages.
    pub fn subscribe() -> io::Result<Interfaces> {
        let events = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        let groups = libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        bind(events.as_raw_fd(), &NetlinkAddr::new(0, groups as u32))?;
        Ok(Interfaces { events })
    }

    /// Waits until something may have changed, and takes in all that has.
    ///
    /// # Errors
    /// If the subscription broke.
    pub fn wait(&self) -> io::Result<()> {
        // What the events say does not matter: the addresses are read anew, all of them. So an
        // overrun, which loses events, is an event like any other.
        let mut buffer = [0_u8; 8192];
        let mut flags = MsgFlags::empty();
        loop {
            match recv(self.events.as_raw_fd(), &mut buffer, flags) {
                Ok(_) | Err(Errno::ENOBUFS) => flags = MsgFlags::MSG_DONTWAIT,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// All addresses that the interfaces of this network namespace have now.
///
/// # Errors
/// If the kernel does not list them.
pub fn interface_addresses() -> io::Result<Change> {
    let mut addresses = BTreeSet::new();
    for interface in getifaddrs()? {
        let Some(address) = interface.address else {
            continue;
        };
        if let Some(v4) = address.as_sockaddr_in() {
            addresses.insert(IpAddr::V4(v4.ip()));
        } else if let Some(v6) = address.as_sockaddr_in6() {
            addresses.insert(IpAddr::V6(v6.ip()));
        }
    }
    Ok(Change::InterfaceAddresses(addresses))
}
