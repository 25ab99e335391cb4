//! A node port on an address that comes while a client sends.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shunt_testbed::{Echo, Flow, Outcome, Protocol};

use crate::world::{CLUSTER_CIDR, World};

const NODE_PORT: u16 = 30080;
/// Addresses that the client sends to the node, whether the node has them or not.
const ADDED: [&str; 2] = ["203.0.113.77", "2001:db8:113::77"];
/// How long the agent may take to follow.
const PATIENCE: Duration = Duration::from_secs(10);
const PODS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];

/// A client that sends before the agent knows an address of its node, and does not stop.
#[test]
fn flow_from_before_an_address_has_node_ports_reaches_a_pod() -> Result<()> {
    let world = World::with_web()?;
    let node = &world.lab.node;
    let _own_server = Echo::on(node, NODE_PORT)?;
    let addresses = "nodePortAddresses: [203.0.113.0/24, '2001:db8:113::/64']\n";
    let agent = world.agent(&format!("{CLUSTER_CIDR}{addresses}"))?.start()?;
    let process = Pid::from_raw(agent.pid());
    node.ip("link add extra type veth peer name extra-peer\nlink set extra up\n")?;
    let client = &world.lab.client;
    for ip in ADDED {
        let to = SocketAddr::new(ip.parse()?, NODE_PORT);
        let source = client.ip_like(to.ip()).context("an address")?;
        kill(process, Signal::SIGSTOP)?;
        node.ip(&format!("addr add {ip} dev extra"))?;
        let mut flow = client.run(|| Flow::open(Protocol::Udp, (source, 0), to))?;
        let start = Instant::now();
        let mut wait_for = |servers: &[&str]| loop {
            Flow::ask_all(&mut [&mut flow], Duration::from_millis(300))?;
            if matches!(&flow.reply, Some(Outcome::Reached { server, .. }) if servers.contains(&&**server))
            {
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
