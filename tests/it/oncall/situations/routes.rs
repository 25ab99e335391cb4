//! Packets with a false source, and a node that is dead.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Answer, explain, wait_for, world_with};
use crate::world::World;

/// The timeout for one of many connections that may be lost.
const SILENCE: Duration = Duration::from_millis(50);
/// Endpoints: pod-3, or all.
const THIRD: u16 = 73;
const ALL: u16 = 74;

fn world() -> Result<World> {
    world_with(|lab| vec![(THIRD, vec![&lab.pod3]), (ALL, vec![&lab.pod1, &lab.pod2, &lab.pod3])])
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
    lab.from(&lab.pod1).tcp(to).reaches(&["pod-3"]);
    explain(&world, &["--to", to, "--netns", &namespace])?.is("delivered", &[])
}

/// The other node does not answer any more: its address moves to none.
#[test]
fn dead_node_is_seen_after_traffic() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
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
