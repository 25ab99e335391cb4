//! Whose address endpoints see, where the matrix does not say it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use shunt_testbed::{Echo, EndpointSlice, Outcome, Protocol};

use crate::world::{CLUSTER_CIDR, TARGET, World, cluster_ip_service, manifest, web};

/// Services with endpoints on the node only: `pair` on both pods, `lone` on the first.
fn world() -> Result<World> {
    let world = World::new()?;
    let (pod1, pod2) = (&world.lab.pod1, &world.lab.pod2);
    let pair = cluster_ip_service("pair", &["10.96.0.20", "fd00:96::20"]);
    world.manifests.write("pair.yaml", manifest(&pair, "pair", &[pod1, pod2]))?;
    let lone = cluster_ip_service("lone", &["10.96.0.21", "fd00:96::21"]);
    world.manifests.write("lone.yaml", manifest(&lone, "lone", &[pod1]))?;
    Ok(world)
}

const PAIR: [&str; 2] = ["10.96.0.20:80", "[fd00:96::20]:80"];
const LONE: [&str; 2] = ["10.96.0.21:80", "[fd00:96::21]:80"];

#[test]
fn without_detection_cluster_ip_traffic_keeps_its_source() -> Result<()> {
    let world = world()?;
    let _agent = world.agent("")?.start()?;
    for protocol in Protocol::ALL {
        for to in PAIR {
            let client = world.lab.from(&world.lab.client).probe(protocol, to);
            client.reaches(&["pod-1", "pod-2"]).source_preserved();
            let pod = world.lab.from(&world.lab.pod1).probe(protocol, to);
            pod.reaches(&["pod-1", "pod-2"]).not_at("pod-1").source_preserved();
        }
    }
    Ok(())
}

#[test]
fn detection_of_one_family_leaves_the_other_alone() -> Result<()> {
    let world = world()?;
    let _agent = world.agent("clusterCIDR: 10.244.0.0/16\n")?.start()?;
    let [v4, v6] = PAIR;
    let client = world.lab.from(&world.lab.client);
    client.tcp(v4).reaches(&["pod-1", "pod-2"]).source_masqueraded();
    client.tcp(v6).reaches(&["pod-1", "pod-2"]).source_preserved();
    Ok(())
}

#[test]
fn masquerade_all_hides_pods_too() -> Result<()> {
    let world = world()?;
    let config = format!("{CLUSTER_CIDR}nftables: {{masqueradeAll: true}}\n");
    let _agent = world.agent(&config)?.start()?;
    for protocol in Protocol::ALL {
        for to in PAIR {
            for host in [&world.lab.client, &world.lab.node, &world.lab.pod1] {
                let reached = world.lab.from(host).probe(protocol, to).reaches(&["pod-1", "pod-2"]);
                reached.source_masqueraded();
            }
        }
    }
    Ok(())
}

/// With detection or without: an answer that does not pass the node would be from a stranger.
#[test]
fn a_pod_reaches_itself_through_a_service() -> Result<()> {
    for config in ["", CLUSTER_CIDR] {
        let world = world()?;
        let _agent = world.agent(config)?.start()?;
        for protocol in Protocol::ALL {
            for to in LONE {
                let itself = world.lab.from(&world.lab.pod1).probe(protocol, to);
                itself.reaches(&["pod-1"]).source_masqueraded();
            }
        }
    }
    Ok(())
}

/// On flat networks the prefix of the pods holds addresses of nodes.
#[test]
fn the_node_counts_as_a_pod_where_its_address_is_one_of_theirs() -> Result<()> {
    let world = World::new()?;
    let local = web().spec("externalTrafficPolicy: Local");
    world.manifests.write("web.yaml", manifest(&local, "web", &[&world.lab.pod3]))?;
    let all = "clusterCIDR: 192.0.2.0/24,2001:db8:2::/64\n";
    for (config, counts) in [(all, true), (CLUSTER_CIDR, false)] {
        let agent = world.agent(config)?.start()?;
        for (vip, own) in [
            ("203.0.113.10:80", world.lab.node.ips().nth(1)),
            ("192.0.2.10:30080", world.lab.node.ips().nth(1)),
            ("[2001:db8:113::10]:80", world.lab.node.ips().nth(3)),
            ("[2001:db8:2::10]:30080", world.lab.node.ips().nth(3)),
        ] {
            let own = own.context("a second address")?;
            let node = world.lab.from(&world.lab.node).tcp(vip).source(own);
            let reached = node.reaches(&["pod-3"]);
            if counts {
                reached.source_preserved();
            } else {
                let kept = |outcome: &Outcome| matches!(outcome, Outcome::Reached { source, .. } if *source == own);
                assert!(!reached.tally().counts.iter().any(|(outcome, _)| kept(outcome)), "{vip}");
            }
        }
        agent.stop()?;
    }
    Ok(())
}

/// An endpoint can be the node itself (`hostNetwork`): what the node sends to its own addresses is
/// none of our business unless it went through a Service.
#[test]
fn the_node_reaches_itself_as_if_there_were_no_service() -> Result<()> {
    let world = World::new()?;
    let node = &world.lab.node;
    let _server = Echo::on(node, TARGET)?;
    let hosted = cluster_ip_service("hosted", &["10.96.0.22", "fd00:96::22"]);
    let own = [node.ipv4[1].to_string(), node.ipv6[1].to_string()];
    let slice = |slice: EndpointSlice, own: &str| {
        slice.port("tcp", Protocol::Tcp, TARGET).endpoint(own, "nodeName: node-1")
    };
    let slices =
        [slice(EndpointSlice::v4("hosted"), &own[0]), slice(EndpointSlice::v6("hosted"), &own[1])];
    world.manifests.write("hosted.yaml", format!("{hosted}{}{}", slices[0], slices[1]))?;
    let _agent = world.start()?;
    for (ip, service) in own.iter().zip(["10.96.0.22:80", "[fd00:96::22]:80"]) {
        let ip: IpAddr = ip.parse()?;
        world.lab.from(&world.lab.pod1).tcp(service).reaches(&["node-1"]);
        let direct = world.lab.from(node).tcp(SocketAddr::new(ip, TARGET)).source(ip);
        direct.reaches(&["node-1"]).source_preserved();
    }
    Ok(())
}

#[test]
fn only_the_configured_bit_of_the_mark_is_touched() -> Result<()> {
    for (bit, settings) in [(14, ""), (5, "nftables: {masqueradeBit: 5}\n")] {
        let world = world()?;
        // The user's own marks, among them one that differs from ours in a single bit.
        world.lab.node.nft(
            "add table inet user
             add counter inet user damaged
             add chain inet user arriving { type filter hook prerouting priority -300; }
             add rule inet user arriving meta mark set 0x80000001
             add chain inet user sent { type filter hook output priority -300; }
             add rule inet user sent meta mark set 0x80000001
             add chain inet user leaving { type filter hook postrouting priority 300; }
             add rule inet user leaving meta mark != 0x80000001 counter name damaged",
        )?;
        let _agent = world.agent(&format!("{CLUSTER_CIDR}{settings}"))?.start()?;
        let rules = world.rules()?;
        let mark = format!("{:08x}", 1 << bit);
        assert!(rules.contains(&mark), "no rule knows the mark {mark}:\n{rules}");
        for to in PAIR {
            for host in [&world.lab.client, &world.lab.node, &world.lab.pod2] {
                world.lab.from(host).tcp(to).reaches(&["pod-1", "pod-2"]);
            }
            let client = world.lab.from(&world.lab.client).tcp(to);
            client.reaches(&["pod-1", "pod-2"]).source_masqueraded();
        }
        let counter =
            world.lab.node.output("nft", &["list", "counter", "inet", "user", "damaged"])?;
        assert!(counter.contains("packets 0 "), "{counter}");
    }
    Ok(())
}
