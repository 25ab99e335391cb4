//! The sockets that wait for packets from any peer.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context as _, Result};
use nfnetlink::sock_diag::{self, WaitingSocket};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, setsockopt, socket,
    sockopt,
};
use shunt_testbed::{Netns, eventually};

fn inode(socket: &impl AsRawFd) -> Result<u32> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
    let link = link.to_str().context("no text")?;
    Ok(link.trim_start_matches("socket:[").trim_end_matches(']').parse()?)
}

const TCP: u8 = 6;
const UDP: u8 = 17;

fn waiting(netns: &Netns, protocol: u8) -> Result<Vec<WaitingSocket>> {
    netns.run(|| Ok(sock_diag::waiting(protocol)?))
}

fn text(sockets: &[WaitingSocket]) -> Vec<String> {
    let mut texts: Vec<String> =
        sockets.iter().map(|it| format!("{} {} {}", it.address, it.port, it.v6_only)).collect();
    texts.sort_unstable();
    texts
}

#[test]
fn listening_tcp_sockets_are_listed_and_connections_are_not() -> Result<()> {
    let netns = Netns::new()?;
    netns.ip("link set lo up")?;
    let (v4, _connection, _accepted) = netns.run(|| {
        let v4 = TcpListener::bind("127.0.0.1:8080")?;
        let connection = TcpStream::connect("127.0.0.1:8080")?;
        let accepted = v4.accept()?;
        Ok((v4, connection, accepted))
    })?;
    let _v6 = netns.run(|| Ok(["[::]:8081", "[::ffff:127.0.0.1]:8079"].map(TcpListener::bind)))?;
    let v6_only = |address: &str| {
        netns.run(|| {
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Inet6, SockType::Stream, flags, None)?;
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            let address: std::net::SocketAddrV6 = address.parse()?;
            bind(socket.as_raw_fd(), &SockaddrIn6::from(address))?;
            Ok(socket)
        })
    };
    let (v6_only, _bound_only) = (v6_only("[::]:8082")?, v6_only("[::]:8083")?);
    listen(&v6_only, Backlog::new(1)?)?;
    let found = waiting(&netns, TCP)?;
    assert_eq!(
        text(&found),
        ["127.0.0.1 8079 false", "127.0.0.1 8080 false", ":: 8081 false", ":: 8082 true"]
    );
    let own = found.iter().find(|it| it.port == 8080).context("no socket")?;
    assert_eq!((own.inode, own.uid), (inode(&v4)?, std::fs::metadata("/proc/self")?.uid()));
    assert_eq!(waiting(&netns, UDP)?, []);
    Ok(())
}

#[test]
fn bound_udp_sockets_are_listed_and_connected_ones_are_not() -> Result<()> {
    let netns = Netns::new()?;
    netns.ip("link set lo up")?;
    let sockets = netns.run(|| {
        let connected = UdpSocket::bind("127.0.0.1:8080")?;
        connected.connect("127.0.0.1:9")?;
        let on_interface = UdpSocket::bind("0.0.0.0:8082")?;
        setsockopt(&on_interface, sockopt::BindToDevice, &"lo".into())?;
        Ok((connected, UdpSocket::bind("0.0.0.0:8081")?, on_interface))
    })?;
    let found = waiting(&netns, UDP)?;
    assert_eq!(text(&found), ["0.0.0.0 8081 false", "0.0.0.0 8082 false"]);
    let interface = |port| found.iter().find(|it| it.port == port).and_then(|it| it.interface);
    assert_eq!((interface(8081), interface(8082)), (None, Some(1)));
    // A process that another test starts has copies of them until it executes its program.
    drop(sockets);
    eventually("the end of closed sockets", || Ok(waiting(&netns, UDP)?.is_empty().then_some(())))
}

#[test]
fn long_lists_are_complete() -> Result<()> {
    let netns = Netns::new()?;
    let _sockets = netns.run(|| {
        let bind = |port| Ok(UdpSocket::bind(("0.0.0.0", port))?);
        (20_000..20_800).map(bind).collect::<Result<Vec<UdpSocket>>>()
    })?;
    let mut ports: Vec<u16> = waiting(&netns, UDP)?.iter().map(|it| it.port).collect();
    ports.sort_unstable();
    assert!(ports.into_iter().eq(20_000..20_800));
    Ok(())
}
