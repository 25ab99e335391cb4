//! Packets of other protocols, and one that decides.

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

use super::{explain, world_with};
use crate::world::World;

/// Endpoint pod-1, pod-2, the node itself, or none.
const FIRST: u16 = 51;
const SECOND: u16 = 52;
const OF_NODE: u16 = 53;
const NOWHERE: u16 = 54;

fn world() -> Result<World> {
    world_with(|lab| {
        vec![
            (FIRST, vec![&lab.pod1]),
            (SECOND, vec![&lab.pod2]),
            (OF_NODE, vec![&lab.node]),
            (NOWHERE, Vec::new()),
        ]
    })
}

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
    let world = world()?;
    let _agent = world.start()?;
    for (to, from) in [
        ("10.96.0.51", "192.0.2.100"),
        ("fd00:96::51", "2001:db8:2::100"),
        ("203.0.113.51", "192.0.2.100"),
        ("2001:db8:113::51", "2001:db8:2::100"),
    ] {
        let destination = format!("{to}/icmp");
        let answer = explain(&world, &["--to", &destination, "--from", from])?;
        let address = to.parse()?;
        let seen = world.lab.client.run(|| ping(address))?;
        ensure!(answer.codes().contains("not-a-service-protocol"), "{:#}", answer.json);
        ensure!(seen != Ping::Answered, "{to} answers pings");
        ensure!([3, 4].contains(&answer.status), "{seen:?}: {:#}", answer.json);
    }
    // An address of the node itself is one of no Service.
    let seen = world.lab.client.run(|| ping("192.0.2.10".parse()?))?;
    ensure!(seen == Ping::Answered, "{seen:?}");
    let answer = explain(&world, &["--to", "192.0.2.10/icmp", "--from", "192.0.2.100"])?;
    ensure!(answer.status == 4, "{:#}", answer.json);
    Ok(())
}

/// A real packet decides where rules and objects do not know more.
#[test]
fn probe_decides_about_endpoints_that_do_not_answer() -> Result<()> {
    let world = world()?;
    let lab = &world.lab;
    let _agent = world.start()?;
    let namespace = lab.client.path().display().to_string();
    // Without a listener.
    let refused = ["10.96.0.53:80", "[fd00:96::53]:80"];
    lab.pod2.nft("table inet frozen { chain in { type filter hook input priority 0; drop; }; }")?;
    for (to, word, status, code) in [
        ("10.96.0.51:80", "delivered", 0, None),
        ("[fd00:96::51]:80", "delivered", 0, None),
        (refused[0], "refused", 3, Some("endpoint-refuses")),
        (refused[1], "refused", 3, Some("endpoint-refuses")),
        ("10.96.0.52:80", "dropped", 3, Some("endpoint-not-answering")),
    ] {
        let answer = explain(&world, &["--to", to, "--netns", &namespace, "--probe"])?;
        ensure!(answer.json["verdict"] == word && answer.status == status, "{:#}", answer.json);
        ensure!(answer.codes().into_iter().eq(code), "{to}: {:#}", answer.json);
        let client = lab.from(&lab.client).tcp(to);
        match word {
            "delivered" => drop(client.reaches(&["pod-1"])),
            "refused" => client.refused(),
            _ => client.times(2).dropped(),
        }
    }
    Ok(())
}

/// A mere listing by `iptables-legacy` makes an empty table.
#[test]
fn legacy_iptables_counts_with_rules_and_leaves_certain_answers_certain() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    let (delivered, refused) = ("10.96.0.51:80", "10.96.0.54:80");
    let answer = |to| explain(&world, &["--to", to, "--from", "192.0.2.100"]);
    let legacy = |arguments: &[&str]| world.lab.node.output("iptables-legacy", arguments);
    for listing in [false, true] {
        if listing {
            legacy(&["--list", "--numeric"])?;
        }
        answer(delivered)?.is("delivered", &[])?;
        answer(refused)?.is("refused", &["no-endpoints"])?;
    }
    legacy(&["--append", "FORWARD", "--destination", "10.244.0.99", "--jump", "DROP"])?;
    answer(delivered)?.is("unknown", &["foreign-drop-possible"])?;
    answer(refused)?.is("refused", &["foreign-drop-possible", "no-endpoints"])?;
    let client = world.lab.from(&world.lab.client);
    client.tcp(delivered).reaches(&["pod-1"]);
    client.tcp(refused).refused();
    Ok(())
}
