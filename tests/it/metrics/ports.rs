//! Ports that are taken.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt,
};
use shunt_testbed::HEALTH_PORT;

use crate::world::World;

/// Options that let sockets share a port take the consent of both.
#[test]
fn another_process_cannot_listen_beside_the_agent() -> Result<()> {
    let world = World::empty()?;
    let agent = world.plain_agent().start()?;
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, Ipv4Addr::new(192, 0, 2, 10)] {
        for (reuse_address, reuse_port) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let listened = world.lab.node.run(|| {
                let flags = SockFlag::SOCK_CLOEXEC;
                let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
                setsockopt(&socket, sockopt::ReuseAddr, &reuse_address)?;
                setsockopt(&socket, sockopt::ReusePort, &reuse_port)?;
                let address = SockaddrIn::from(SocketAddrV4::new(ip, HEALTH_PORT));
                Ok(bind(socket.as_raw_fd(), &address)
                    .and_then(|()| listen(&socket, Backlog::new(1)?)))
            })?;
            assert_eq!(listened, Err(Errno::EADDRINUSE), "{ip} {reuse_address} {reuse_port}");
        }
    }
    agent.stop()
}
