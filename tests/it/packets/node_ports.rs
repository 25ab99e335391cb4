//! On which addresses of the node its node ports are: `nodePortAddresses`.
//!
//! A server of the node itself listens on the same port, so an address without the node port
//! answers too, but in the node's name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use shunt_testbed::{Agent, Echo, Host, Node, Protocol};

use crate::world::{CLUSTER_CIDR, SHUNT, World};

const NODE_PORT: u16 = 30080;
const PRIMARY: [IpAddr; 2] = [v4(192, 0, 2, 10), v6(0x10)];
const SECONDARY: [IpAddr; 2] = [v4(192, 0, 2, 11), v6(0x11)];
const LOOPBACK: [IpAddr; 3] = [v4(127, 0, 0, 1), v4(127, 0, 0, 2), IpAddr::V6(Ipv6Addr::LOCALHOST)];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// An address of the node's segment.
const fn v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, last))
}

struct NodePorts {
    world: World,
    _own_server: Echo,
}

impl NodePorts {
    fn new() -> Result<Self> {
        let world = World::with_web()?;
        let own_server = Echo::on(&world.lab.node, NODE_PORT)?;
        Ok(Self { world, _own_server: own_server })
    }

    #[track_caller]
    fn offered(&self, ips: &[IpAddr]) {
        self.assert_reached(ips, &["pod-1", "pod-2", "pod-3"]);
    }

    #[track_caller]
    fn not_offered(&self, ips: &[IpAddr]) {
        self.assert_reached(ips, &["node-1"]);
    }

    /// Asserts it for all who can send to these addresses.
    #[track_caller]
    fn assert_reached(&self, ips: &[IpAddr], servers: &[&str]) {
        let lab = &self.world.lab;
        for &ip in ips {
            let senders: &[&Host] = match ip.is_loopback() {
                true => &[&lab.node],
                false => &[&lab.client, &lab.node, &lab.pod1, &lab.node2],
            };
            for sender in senders {
                for protocol in Protocol::ALL {
                    let to = SocketAddr::new(ip, NODE_PORT);
                    lab.from(sender).probe(protocol, to).reaches(servers);
                }
            }
        }
    }
}

/// A node that comes from iptables or IPVS keeps its node ports where they were.
#[test]
fn unset_addresses_follow_the_mode() -> Result<()> {
    let node = NodePorts::new()?;
    let by_file = |config: &str| node.world.agent(config);
    let by_flags = |flags: &[&str]| {
        let agent = Agent::builder(SHUNT, &node.world.lab.node).manifests(&node.world.manifests);
        flags.iter().fold(agent, |agent, flag| agent.arg(*flag))
    };
    const ALL: &str = "node ports answer on every local address except loopback";
    const OWN: &str = "node ports answer on 192.0.2.10, 2001:db8:2::10";
    for (agent, says) in [
        (by_file("")?, ALL),
        (by_file("mode: iptables\nnodePortAddresses: []\n")?, ALL),
        (by_file("mode: ipvs\n")?, ALL),
        (by_file("mode: nftables\n")?, OWN),
        (by_file("mode: nftables\nnodePortAddresses: null\n")?, OWN),
        (by_file("mode: iptables\nnodePortAddresses: [primary]\n")?, OWN),
        (by_flags(&[]), ALL),
        (by_flags(&["--proxy-mode=iptables"]), ALL),
        (by_flags(&["--proxy-mode=ipvs"]), ALL),
        (by_flags(&["--proxy-mode=nftables"]), OWN),
        (by_flags(&["--proxy-mode=iptables", "--nodeport-addresses=primary"]), OWN),
    ] {
        let agent = agent.start()?;
        node.offered(&PRIMARY);
        if says == ALL {
            node.offered(&SECONDARY);
        } else {
            node.not_offered(&SECONDARY);
        }
        node.not_offered(&LOOPBACK);
        agent.wait_for_log(&["INFO", says])?;
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn the_word_primary_means_the_same() -> Result<()> {
    let node = NodePorts::new()?;
    let config = format!("{CLUSTER_CIDR}nodePortAddresses: [primary]\n");
    let _agent = node.world.agent(&config)?.start()?;
    node.offered(&PRIMARY);
    node.not_offered(&SECONDARY);
    Ok(())
}

#[test]
fn without_a_node_object_they_are_on_every_address_but_loopback() -> Result<()> {
    let node = NodePorts::new()?;
    node.world.manifests.remove("node.yaml")?;
    let agent = node.world.start()?;
    node.offered(&PRIMARY);
    node.offered(&SECONDARY);
    node.not_offered(&LOOPBACK);
    agent.wait_for_log(&["WARN", "every local address except loopback", "no Node object"])?;
    Ok(())
}

#[test]
fn a_family_of_which_the_node_has_no_address_has_them_on_every_address() -> Result<()> {
    let node = NodePorts::new()?;
    let [v4, v6] = PRIMARY;
    let [other_v4, other_v6] = SECONDARY;
    let with = |ip: IpAddr| {
        let object = Node::of(&node.world.lab.node).to_string();
        let other = if ip == v4 { v6 } else { v4 };
        let lines = object.lines().filter(|line| !line.contains(&format!("{other:?}")));
        node.world.manifests.write("node.yaml", lines.map(|l| format!("{l}\n")).collect::<String>())
    };
    for (ip, offered, not_offered) in
        [(v4, [v4, v6, other_v6], other_v4), (v6, [v6, v4, other_v4], other_v6)]
    {
        with(ip)?;
        let agent = node.world.start()?;
        node.offered(&offered);
        node.not_offered(&[not_offered]);
        node.not_offered(&LOOPBACK);
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn the_address_to_bind_is_the_primary_one_of_its_family() -> Result<()> {
    for (bind, v4_offered, v6_offered) in [
        ("192.0.2.11", &[SECONDARY[0]][..], &[PRIMARY[1]][..]),
        ("'2001:db8:2::11'", &[PRIMARY[0]], &[SECONDARY[1]]),
        ("0.0.0.0", &[PRIMARY[0]], &[PRIMARY[1]]),
        ("127.0.0.1", &[PRIMARY[0], SECONDARY[0]], &[PRIMARY[1]]),
    ] {
        let node = NodePorts::new()?;
        let _agent = node.world.agent(&format!("{CLUSTER_CIDR}bindAddress: {bind}\n"))?.start()?;
        for ip in [PRIMARY, SECONDARY].concat() {
            if v4_offered.contains(&ip) || v6_offered.contains(&ip) {
                node.offered(&[ip]);
            } else {
                node.not_offered(&[ip]);
            }
        }
    }
    Ok(())
}

#[test]
fn a_cidr_selects_addresses_and_a_family_without_one_has_all() -> Result<()> {
    let node = NodePorts::new()?;
    let config = format!("{CLUSTER_CIDR}nodePortAddresses: [192.0.2.11/32]\n");
    let _agent = node.world.agent(&config)?.start()?;
    let [v4, v6] = PRIMARY;
    let [other_v4, other_v6] = SECONDARY;
    node.offered(&[other_v4, v6, other_v6]);
    node.not_offered(&[v4]);
    node.not_offered(&LOOPBACK);
    Ok(())
}

#[test]
fn all_addresses_are_all_but_loopback() -> Result<()> {
    let node = NodePorts::new()?;
    let config = format!("{CLUSTER_CIDR}nodePortAddresses: [0.0.0.0/0, '::/0']\n");
    let _agent = node.world.agent(&config)?.start()?;
    node.offered(&PRIMARY);
    node.offered(&SECONDARY);
    node.not_offered(&LOOPBACK);
    Ok(())
}

/// The node port is one of the node's ports, not one of every machine's.
#[test]
fn traffic_that_passes_through_is_left_alone() -> Result<()> {
    let node = NodePorts::new()?;
    let _server = Echo::on(&node.world.lab.pod2, NODE_PORT)?;
    let config = format!("{CLUSTER_CIDR}nodePortAddresses: [0.0.0.0/0, '::/0']\n");
    let _agent = node.world.agent(&config)?.start()?;
    for to in ["10.244.0.12:30080", "[fd00:244::12]:30080"] {
        for host in [&node.world.lab.pod1, &node.world.lab.node2, &node.world.lab.node] {
            let reached = node.world.lab.from(host).tcp(to).reaches(&["pod-2"]);
            reached.source_preserved();
        }
    }
    Ok(())
}
