//! Endpoints that no packet reaches: pods that are gone or frozen, nodes that do not answer, and
//! routing that refuses.

use anyhow::{Context, Result, ensure};

use super::{
    Answer, From, Packet, ROW, Row, SILENCE, Says, TCP, To, UDP, V4, check, explain, wait_for,
};
use crate::table::service_of;
use crate::world::{World, slices};

/// Endpoints: pod-1, pod-2, pod-3, or all.
const FIRST: u8 = 71;
const SECOND: u8 = 72;
const THIRD: u8 = 73;
const ALL: u8 = 74;

fn world() -> Result<World> {
    let world = World::new()?;
    let [pod1, pod2, pod3] = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    for (number, pods) in
        [(FIRST, &[pod1][..]), (SECOND, &[pod2]), (THIRD, &[pod3]), (ALL, &[pod1, pod2, pod3])]
    {
        let name = format!("service-{number}");
        let content = format!("{}{}", service_of(&name, number), slices(&name, pods));
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    Ok(world)
}

/// What is true as long as nothing is broken.
const WELL: Row = Row {
    situation: "nothing is broken",
    to: To::cluster_ip(ALL),
    over: TCP,
    masquerade: "not-local",
    packet: Packet::Answered(&["pod-1", "pod-2", "pod-3"]),
    ..ROW
};

/// An endpoint cannot be reached, and the client waits in vain.
const LOST: Row = Row {
    says: Says::Dropped,
    codes: &["endpoint-unreachable"],
    masquerade: "not-local",
    packet: Packet::Silent,
    ..ROW
};

#[test]
fn routes_that_refuse_are_seen() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    check(&world, &[WELL])?;
    let node = &world.lab.node;
    for (kind, says, packet) in [
        ("unreachable", Says::Refused, Packet::Unreachable),
        ("prohibit", Says::Refused, Packet::Unreachable),
        ("blackhole", Says::Dropped, Packet::Silent),
    ] {
        node.ip(&format!(
            "route replace {kind} 10.244.1.0/24\n\
             route del fd00:244:1::/64\n\
             route add {kind} fd00:244:1::/64"
        ))?;
        let rows = [
            Row { situation: "a route refuses", to: To::cluster_ip(THIRD), says, packet, ..LOST },
            Row {
                situation: "a route refuses, from a pod",
                from: From::Pod1,
                to: To::cluster_ip(THIRD),
                says,
                masquerade: "",
                packet,
                ..LOST
            },
        ];
        check(&world, &rows).context(kind)?;
    }
    node.ip("route del blackhole 10.244.1.0/24\n\
         route del blackhole fd00:244:1::/64\n\
         route del default\n\
         route del ::/0 via 2001:db8:2::1")?;
    check(
        &world,
        &[Row {
            situation: "no route leads to the endpoint",
            to: To::cluster_ip(THIRD),
            // Routing answers five packets of a client at once, and then one a second
            // (`ip_error`). Only a SYN is sent again.
            over: TCP,
            says: Says::Refused,
            packet: Packet::Unreachable,
            ..LOST
        }],
    )
}

#[test]
fn node_that_does_not_forward_is_seen() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    check(&world, &[WELL])?;
    world
        .lab
        .node
        .sysctl(&[("net/ipv4/ip_forward", "0"), ("net/ipv6/conf/all/forwarding", "0")])?;
    check(
        &world,
        &[
            Row { situation: "forwarding is off", to: To::cluster_ip(FIRST), ..LOST },
            Row {
                situation: "forwarding is off, and the node itself needs none",
                from: From::Node,
                to: To::cluster_ip(FIRST),
                masquerade: "not-local",
                packet: Packet::Answered(&["pod-1"]),
                ..ROW
            },
        ],
    )
}

/// The pod sends with an address of another one, which the strict reverse path filter refuses.
#[test]
fn reverse_path_filter_is_seen() -> Result<()> {
    let world = world()?;
    let lab = &world.lab;
    let _agent = world.start()?;
    lab.pod1.ip("addr add 10.244.0.12/32 dev eth0")?;
    lab.node.sysctl(&[("net/ipv4/conf/veth-pod-1/rp_filter", "1")])?;
    let namespace = lab.pod1.path().display().to_string();
    let to = "10.96.0.73:80";
    let spoofed = ["--to", to, "--from", "10.244.0.12", "--netns", &namespace];
    let answer = explain(&world, &spoofed)?;
    ensure!(answer.json["verdict"] == "dropped", "{:#}", answer.json);
    ensure!(answer.codes().contains("endpoint-unreachable"), "{:#}", answer.json);
    let spoofed: std::net::IpAddr = "10.244.0.12".parse()?;
    lab.from(&lab.pod1).tcp(to).source(spoofed).times(2).dropped();
    check(
        &world,
        &[Row {
            situation: "the reverse path filter accepts the pod's own address",
            from: From::Pod1,
            to: To::cluster_ip(THIRD),
            families: V4,
            over: TCP,
            packet: Packet::Answered(&["pod-3"]),
            ..ROW
        }],
    )
}

#[test]
fn pods_without_a_link_are_seen() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    check(&world, &[WELL])?;
    world.lab.pod1.ip("link set eth0 down")?;
    let rows = [
        Row { situation: "the pod's interface is down", to: To::cluster_ip(FIRST), ..LOST },
        Row {
            situation: "one of three endpoints is down",
            to: To::cluster_ip(ALL),
            over: TCP,
            says: Says::Unknown,
            codes: &["endpoint-unreachable"],
            masquerade: "not-local",
            // Two of three connections are answered.
            packet: Packet::Some(&["pod-2", "pod-3"]),
            ..ROW
        },
    ];
    check(&world, &rows)?;
    // With the namespace of a pod, both ends of its veth and the routes go.
    world.lab.node.ip("link del veth-pod-2")?;
    check(
        &world,
        &[Row {
            situation: "the pod's namespace is gone, and the default route takes its packets",
            to: To::cluster_ip(SECOND),
            says: Says::Unknown,
            packet: Packet::Untouched,
            ..LOST
        }],
    )
}

/// The other node does not answer any more: its address moves to none.
#[test]
fn dead_node_is_seen_after_traffic() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    check(&world, &[WELL])?;
    let node = &world.lab.node;
    node.ip("route replace 10.244.1.0/24 via 192.0.2.77\n\
         route replace fd00:244:1::/64 via 2001:db8:2::77")?;
    node.sysctl(&[
        ("net/ipv4/neigh/eth0/retrans_time_ms", "50"),
        ("net/ipv6/neigh/eth0/retrans_time_ms", "50"),
    ])?;
    // The kernel forgets neighbours that have failed, so each question follows a packet.
    for (from, to, word, status, servers) in [
        (&world.lab.client, "10.96.0.73:80", "dropped", 3, &[][..]),
        (&world.lab.client, "[fd00:96::73]:80", "dropped", 3, &[]),
        (&world.lab.client, "10.96.0.74:80", "unknown", 1, &["pod-1", "pod-2"]),
        (&world.lab.client, "[fd00:96::74]:80", "unknown", 1, &["pod-1", "pod-2"]),
    ] {
        let is_v6 = to.starts_with('[');
        let address = from.ips().find(|ip| ip.is_ipv6() == is_v6).context("no address")?;
        let question = ["--to", to, "--from", &address.to_string()];
        let probe = world.lab.from(from).tcp(to);
        let is_seen = |answer: &Answer| answer.codes().contains("endpoint-unreachable");
        let answer = wait_for(&world, &question, |answer| {
            let sent = probe.tally(6, SILENCE);
            is_seen(answer) && sent.is_ok()
        })?;
        let codes: Vec<&str> = answer.codes().into_iter().collect();
        ensure!(codes == ["endpoint-unreachable"], "{:#}", answer.json);
        ensure!(answer.json["verdict"] == word && answer.status == status, "{:#}", answer.json);
        let tally = probe.tally(80, SILENCE)?;
        ensure!(tally.lost() > 0, "{tally}");
        ensure!(tally.by_server().into_keys().eq(servers.iter().copied()), "{tally}");
    }
    Ok(())
}

/// A pod that takes packets and answers none, as a frozen one does.
#[test]
fn frozen_pod_is_seen_after_traffic() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    check(&world, &[WELL])?;
    world
        .lab
        .pod1
        .nft("table inet frozen { chain in { type filter hook input priority 0; drop; }; }")?;
    let client = world.lab.from(&world.lab.client);
    for to in ["10.96.0.71:80", "[fd00:96::71]:80"] {
        client.tcp(to).times(2).dropped();
    }
    check(
        &world,
        &[
            Row {
                situation: "the pod does not answer",
                to: To::cluster_ip(FIRST),
                over: TCP,
                says: Says::Unknown,
                codes: &["endpoint-not-answering"],
                ..LOST
            },
            // No reply to a datagram is normal.
            Row {
                situation: "another pod answers",
                to: To::cluster_ip(SECOND),
                over: UDP,
                masquerade: "not-local",
                packet: Packet::Answered(&["pod-2"]),
                ..ROW
            },
        ],
    )
}
