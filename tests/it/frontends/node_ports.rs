//! Node ports on addresses that come and go while the agent runs.
//!
//! `packets/node_ports.rs` has what `nodePortAddresses` selects at the start.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shunt_testbed::{Echo, Flow, Node, Outcome, Protocol, Reply, probe};

use crate::world::{CLUSTER_CIDR, World, cluster_ip_service, manifest};

const NODE_PORT: u16 = 30080;
/// Addresses that the client sends to the node, whether the node has them or not.
const ADDED: [&str; 2] = ["203.0.113.77", "2001:db8:113::77"];
/// What `nodePortAddresses` can be so that these have node ports once the node has them.
const SELECTING: [&str; 3] = [
    "[203.0.113.0/24, '2001:db8:113::/64']",
    "[198.51.100.0/24, 203.0.113.77/32, '2001:db8:51::/64', '2001:db8:113::77/128']",
    "[0.0.0.0/0, '::/0']",
];
const LOOPBACK: [&str; 3] = ["127.0.0.1", "127.0.0.2", "::1"];
/// How long the agent may take to follow.
const PATIENCE: Duration = Duration::from_secs(10);
const PODS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];

/// What becomes of packets to a node port.
#[derive(Clone, Copy)]
enum Expected {
    /// They reach the pods.
    Offered,
    /// They reach the node's own server on that port.
    NotOffered,
    /// The node does not have the address.
    Unhandled,
}

/// The node with `web` and a server of its own on the same port.
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

    fn config(addresses: &str) -> String {
        format!("{CLUSTER_CIDR}nodePortAddresses: {addresses}\n")
    }

    fn address(ip: &str) -> Result<SocketAddr> {
        Ok(SocketAddr::new(ip.parse()?, NODE_PORT))
    }

    /// Adds the interface `extra`.
    fn add_interface(&self) -> Result<()> {
        self.world.lab.node.ip("link add extra type veth peer name extra-peer\n\
             link set extra up\n\
             link set extra-peer up")
    }

    /// Adds or removes (`del`) an address of an interface of the node.
    fn change(&self, command: &str, ip: &str, interface: &str) -> Result<()> {
        let rest = if ip.contains(':') { "/128" } else { "/32" };
        self.world.lab.node.ip(&format!("addr {command} {ip}{rest} dev {interface}"))
    }

    /// Asserts it on all protocols, as soon as it has come true for the first.
    #[track_caller]
    fn expect(&self, ip: &str, expected: Expected) -> Result<()> {
        let to = Self::address(ip)?;
        let client = self.world.lab.from(&self.world.lab.client);
        for protocol in Protocol::ALL {
            let probe = client.probe(protocol, to).eventually();
            match expected {
                Expected::Offered => drop(probe.reaches(&PODS)),
                Expected::NotOffered => drop(probe.reaches(&["node-1"])),
                Expected::Unhandled => probe.unhandled(),
            }
        }
        Ok(())
    }

    /// Waits for the first packet that reaches a pod.
    fn wait_for_any_pod(&self, ip: &str) -> Result<()> {
        let to = Self::address(ip)?;
        let start = Instant::now();
        loop {
            let outcome = self.world.lab.client.run(|| probe(Protocol::Udp, None, to, PATIENCE))?;
            if matches!(&outcome, Outcome::Reached { server, .. } if PODS.contains(&&**server)) {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "no pod at {to}: {outcome}");
        }
    }

    /// Waits until no rule and no set names an address. (Packets would not tell: what is not an
    /// address of the node has no node ports, whatever the rules say.)
    fn wait_until_rules_forget(&self, ip: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            let rules = self.world.rules()?;
            if !rules.contains(&format!("{ip} ")) && !rules.contains(&format!("{ip},")) {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "{ip} is still there:\n{rules}");
        }
    }

    /// Never on loopback.
    #[track_caller]
    fn expect_nothing_on_loopback(&self) -> Result<()> {
        for ip in LOOPBACK {
            for protocol in Protocol::ALL {
                let node = self.world.lab.from(&self.world.lab.node);
                node.probe(protocol, Self::address(ip)?).reaches(&["node-1"]);
            }
        }
        Ok(())
    }
}

/// A client that sends before the agent knows an address of its node, and does not stop.
#[test]
fn flow_from_before_an_address_has_node_ports_reaches_a_pod() -> Result<()> {
    let node = NodePorts::new()?;
    let agent = node.world.agent(&NodePorts::config(SELECTING[0]))?.start()?;
    let process = Pid::from_raw(agent.pid());
    node.add_interface()?;
    let client = &node.world.lab.client;
    for ip in ADDED {
        let to = NodePorts::address(ip)?;
        let source = client.ip_like(to.ip()).context("an address")?;
        kill(process, Signal::SIGSTOP)?;
        node.change("add", ip, "extra")?;
        let mut flow = client.run(|| Flow::open(Protocol::Udp, source, to))?;
        let start = Instant::now();
        let mut wait_for = |servers: &[&str]| loop {
            Flow::ask_all(&mut [&mut flow], Duration::from_millis(300))?;
            if matches!(&flow.reply, Reply::Server(server) if servers.contains(&&**server)) {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "{ip}: {:?} instead of {servers:?}", flow.reply);
        };
        wait_for(&["node-1"])?;
        kill(process, Signal::SIGCONT)?;
        wait_for(&PODS)?;
    }
    agent.stop()
}

#[test]
fn addresses_that_come_and_go_are_followed() -> Result<()> {
    for selecting in SELECTING {
        let node = NodePorts::new()?;
        let _agent = node.world.agent(&NodePorts::config(selecting))?.start()?;
        node.add_interface()?;
        for ip in ADDED {
            for _ in 0..2 {
                node.expect(ip, Expected::Unhandled)?;
                node.change("add", ip, "extra")?;
                let added = Instant::now();
                node.wait_for_any_pod(ip)?;
                show(&format!("node port on {ip} with {selecting}"), added);
                node.expect(ip, Expected::Offered)?;
                node.expect_nothing_on_loopback()?;
                node.change("del", ip, "extra")?;
                let removed = Instant::now();
                node.wait_until_rules_forget(ip)?;
                show(&format!("no trace of {ip} with {selecting}"), removed);
            }
            node.expect(ip, Expected::Unhandled)?;
        }
        node.world.assert_web_works();
    }
    Ok(())
}

/// Addresses go with their interface, without a word about each.
#[test]
fn an_interface_goes_with_its_addresses() -> Result<()> {
    let node = NodePorts::new()?;
    let _agent = node.world.agent(&NodePorts::config(SELECTING[0]))?.start()?;
    for _ in 0..2 {
        node.add_interface()?;
        for ip in ADDED {
            node.change("add", ip, "extra")?;
        }
        for ip in ADDED {
            node.expect(ip, Expected::Offered)?;
        }
        node.world.lab.node.ip("link del extra")?;
        for ip in ADDED {
            node.wait_until_rules_forget(ip)?;
            node.expect(ip, Expected::Unhandled)?;
        }
    }
    Ok(())
}

/// An address of the interface `lo` is as good as any if it is not a loopback address.
#[test]
fn the_loopback_interface_may_have_an_address_with_node_ports() -> Result<()> {
    for selecting in SELECTING {
        let node = NodePorts::new()?;
        let _agent = node.world.agent(&NodePorts::config(selecting))?.start()?;
        for ip in ADDED {
            node.change("add", ip, "lo")?;
            node.expect(ip, Expected::Offered)?;
        }
        node.expect_nothing_on_loopback()?;
    }
    Ok(())
}

/// Addresses that are not selected stay without, whenever they come.
#[test]
fn an_address_that_is_not_selected_gets_no_node_ports() -> Result<()> {
    for addresses in
        ["[primary]", "[192.0.2.0/24, '2001:db8:2::/64']", "[198.51.100.0/24, 'fd99::/64']"]
    {
        let node = NodePorts::new()?;
        let _agent = node.world.agent(&NodePorts::config(addresses))?.start()?;
        node.add_interface()?;
        for ip in ["192.0.2.12", ADDED[0], ADDED[1]] {
            node.change("add", ip, "extra")?;
        }
        if addresses.contains("192.0.2.0/24") {
            // The one that is selected shows that the agent has seen them.
            let pod = node.world.lab.from(&node.world.lab.pod1);
            pod.tcp("192.0.2.12:30080").eventually().reaches(&PODS);
        }
        for ip in ADDED {
            node.expect(ip, Expected::NotOffered)?;
        }
        node.expect_nothing_on_loopback()?;
    }
    Ok(())
}

/// The node's own server has the port there, so the agent's proxy cannot listen.
#[test]
fn server_of_the_node_keeps_its_port_on_loopback() -> Result<()> {
    for addresses in [
        "[127.0.0.0/8, '::1/128']",
        "[127.0.0.1/32, 192.0.2.10/32, '::1/128', '2001:db8:2::10/128']",
    ] {
        let node = NodePorts::new()?;
        let _agent = node.world.agent(&NodePorts::config(addresses))?.start()?;
        node.expect_nothing_on_loopback()?;
        let expected = match addresses.contains("192.0.2.10") {
            true => Expected::Offered,
            false => Expected::NotOffered,
        };
        for ip in ["192.0.2.10", "2001:db8:2::10"] {
            node.expect(ip, expected)?;
        }
    }
    Ok(())
}

/// The Node object may get another address while the agent runs.
#[test]
fn the_primary_address_changes() -> Result<()> {
    let node = NodePorts::new()?;
    let _agent = node.world.start()?;
    let mut other = node.world.lab.node.clone();
    other.ipv4.reverse();
    other.ipv6.reverse();
    let old = ["192.0.2.10", "2001:db8:2::10"];
    let new = ["192.0.2.11", "2001:db8:2::11"];
    let steps =
        [(old, new, None), (new, old, Some(other)), (old, new, Some(node.world.lab.node.clone()))];
    for (with, without, change) in steps {
        if let Some(host) = change {
            node.world.manifests.write("node.yaml", shunt_testbed::Node::of(&host))?;
        }
        for (with, without) in with.into_iter().zip(without) {
            node.expect(with, Expected::Offered)?;
            node.expect(without, Expected::NotOffered)?;
        }
    }
    Ok(())
}

/// A Node that is deleted while the agent runs leaves node ports where they are.
#[test]
fn deleted_node_changes_no_address() -> Result<()> {
    let node = NodePorts::new()?;
    let _agent = node.world.start()?;
    let assert_primary_only = || -> Result<()> {
        for (with, without) in [("192.0.2.10", "192.0.2.11"), ("2001:db8:2::10", "2001:db8:2::11")]
        {
            node.expect(with, Expected::Offered)?;
            node.expect(without, Expected::NotOffered)?;
        }
        Ok(())
    };
    assert_primary_only()?;
    node.world.manifests.remove("node.yaml")?;
    // What is written later shows that the agent has seen it.
    let marker = cluster_ip_service("marker", &["10.96.0.99", "fd00:96::99"]);
    let pods = [&node.world.lab.pod1];
    node.world.manifests.write("marker.yaml", manifest(&marker, "marker", &pods))?;
    let client = node.world.lab.from(&node.world.lab.client);
    client.tcp("10.96.0.99:80").eventually().reaches(&["pod-1"]);
    assert_primary_only()?;
    // Nor does a Node that is registered again and has no address yet.
    node.world.manifests.write("node.yaml", Node::without_addresses(&node.world.lab.node))?;
    node.world
        .manifests
        .write("marker.yaml", manifest(&marker, "marker", &[&node.world.lab.pod2]))?;
    client.tcp("10.96.0.99:80").eventually().reaches(&["pod-2"]);
    assert_primary_only()
}

/// How long it took until something was seen to be true, for whoever reads the output.
#[allow(clippy::print_stderr, reason = "a measurement is no condition")]
fn show(what: &str, since: Instant) {
    eprintln!("{what}: {:.1?}", since.elapsed());
}
