//! Pings: they are no test of a Service.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv,
    send, socket,
};

use crate::world::{SHUNT, World};

/// What comes back for an echo request.
#[derive(Debug, PartialEq, Eq)]
enum Ping {
    Answered,
    Error(Errno),
    Silent,
}

/// Sends an ICMP echo request in the network namespace of the calling thread.
fn ping(to: IpAddr) -> Result<Ping> {
    const WAIT: Duration = Duration::from_millis(300);
    let (family, protocol, kind) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128),
    };
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_NONBLOCK, protocol)?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(to, 0)))?;
    // Type, code, checksum, identifier and number; the kernel fills in the checksum for IPv6.
    let mut request = [kind, 0, 0, 0, 0, 1, 0, 1];
    let sum = !(u16::from_be_bytes([kind, 0]) + 2);
    request[2..4].copy_from_slice(&sum.to_be_bytes());
    match send(socket.as_raw_fd(), &request, MsgFlags::empty()) {
        // A rule of the own node drops or rejects it.
        Ok(_) | Err(Errno::EPERM) => {}
        Err(errno) => return Ok(Ping::Error(errno)),
    }
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::try_from(WAIT)?)? == 0 {
        return Ok(Ping::Silent);
    }
    match recv(socket.as_raw_fd(), &mut [0; 512], MsgFlags::empty()) {
        Ok(_) => Ok(Ping::Answered),
        Err(errno) => Ok(Ping::Error(errno)),
    }
}

#[test]
fn pings_are_no_test_of_a_service() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    for (to, from, is_service) in [
        ("10.96.0.10", "192.0.2.100", true),
        ("fd00:96::10", "2001:db8:2::100", true),
        ("203.0.113.10", "192.0.2.100", true),
        ("2001:db8:113::10", "2001:db8:2::100", true),
        // An address of the node itself is one of no Service.
        ("192.0.2.10", "192.0.2.100", false),
    ] {
        let seen = world.lab.client.run(|| ping(to.parse()?))?;
        ensure!((seen == Ping::Answered) != is_service, "{to}: {seen:?}");
        let to = format!("--to={to}/icmp");
        let question = ["explain", "--output=json", &to, "--from", from];
        let output = world.lab.node.command(SHUNT).args(question).output()?;
        let told = String::from_utf8_lossy(&output.stdout);
        ensure!(told.contains("not-a-service-protocol") == is_service, "{told}");
        ensure!(matches!(output.status.code(), Some(3 | 4)), "{seen:?}: {told}");
    }
    Ok(())
}
