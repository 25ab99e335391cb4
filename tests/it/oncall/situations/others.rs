//! Other programs on the node: kube-proxy, and packets of other protocols.

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

use super::{Packet, ROW, Row, Says, TCP, To, V4, check, explain};
use crate::table::service_of;
use crate::world::{CLUSTER_CIDR, World, slices};

/// Endpoint pod-1, pod-2, or the node itself.
const FIRST: u8 = 51;
const SECOND: u8 = 52;
const OF_NODE: u8 = 53;

fn world() -> Result<World> {
    let world = World::new()?;
    let lab = &world.lab;
    for (number, host) in [(FIRST, &lab.pod1), (SECOND, &lab.pod2), (OF_NODE, &lab.node)] {
        let name = format!("service-{number}");
        let content = format!("{}{}", service_of(&name, number), slices(&name, &[host]));
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    Ok(world)
}

const PASSES: Row = Row {
    situation: "it does not concern the packet",
    over: TCP,
    to: To::cluster_ip(SECOND),
    masquerade: "not-local",
    packet: Packet::Answered(&["pod-2"]),
    ..ROW
};

/// Of chains with the same priority, the kernel runs the one first that was added last.
#[test]
fn kube_proxy_beside_the_agent_is_named() -> Result<()> {
    const RULES: &str = "table ip kube-proxy { chain nat-prerouting {
        type nat hook prerouting priority -100;
        ip daddr 10.96.0.51 tcp dport 80 dnat to 10.244.0.12:8080;
    }; }";
    let world = world()?;
    let agent = world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").arg("--drift-check-period=0");
    let _agent = agent.arg("--kube-proxy-check-period=50ms").start()?;
    check(&world, &[PASSES])?;
    world.lab.node.nft(RULES)?;
    agent_knows(&world)?;
    let beside = Row { codes: &["kube-proxy-present"], ..PASSES };
    check(&world, &[beside])?;
    // It decides about the other Service, so the endpoint is another one.
    let question = ["--to", "10.96.0.51:80", "--from", "192.0.2.100"];
    let answer = explain(&world, &question)?;
    ensure!(answer.codes().contains("kube-proxy-present"), "{:#}", answer.json);
    ensure!([0, 1].contains(&answer.status), "{:#}", answer.json);
    let client = world.lab.from(&world.lab.client);
    client.tcp("10.96.0.51:80").reaches(&["pod-2"]);
    // Without shunt's table, only kube-proxy's is left.
    world.lab.node.nft("delete table ip shunt")?;
    let answer = explain(&world, &question)?;
    ensure!(answer.json["verdict"] == "unknown", "{:#}", answer.json);
    client.tcp("10.96.0.51:80").reaches(&["pod-2"]);
    Ok(())
}

fn agent_knows(world: &World) -> Result<()> {
    super::wait_for(world, &["--to", "10.96.0.52:80", "--from", "192.0.2.100"], |answer| {
        answer.codes().contains("kube-proxy-present")
    })
    .map(drop)
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
    const WITHOUT_ENDPOINTS: u8 = 54;
    const DELIVERED: Row = Row { families: V4, ..PASSES };
    const REFUSED: Row = Row {
        situation: "no endpoint",
        to: To::cluster_ip(WITHOUT_ENDPOINTS),
        says: Says::Refused,
        codes: &["no-endpoints"],
        masquerade: "",
        packet: Packet::Refused,
        ..DELIVERED
    };
    let world = world()?;
    let service = service_of("service-54", WITHOUT_ENDPOINTS);
    world.manifests.write("service-54.yaml", service)?;
    let _agent = world.start()?;
    let legacy = |arguments: &[&str]| world.lab.node.output("iptables-legacy", arguments);
    check(&world, &[DELIVERED, REFUSED])?;
    legacy(&["--list", "--numeric"])?;
    check(&world, &[DELIVERED, REFUSED])?;
    legacy(&["--append", "FORWARD", "--destination", "10.244.0.99", "--jump", "DROP"])?;
    let delivered = Row { says: Says::Unknown, codes: &["foreign-drop-possible"], ..DELIVERED };
    let refused = Row { codes: &["foreign-drop-possible", "no-endpoints"], ..REFUSED };
    check(&world, &[delivered, refused])
}
