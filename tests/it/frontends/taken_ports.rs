//! Processes of the node that listen on node ports: what the agent reports, and what it does not.

use std::net::{Ipv6Addr, SocketAddrV6, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, setsockopt, socket,
    sockopt,
};
use serde_json::Value;
use shunt_testbed::{Agent, HttpAnswer, Node, Protocol, Service, patience};

use crate::world::{CLUSTER_CIDR, World, status_json};

/// How long the agent may take to see a socket.
const PATIENCE: Duration = Duration::from_secs(20);

/// The node with a Service for each family, on TCP and UDP, and an agent that looks often.
struct Scene {
    world: World,
    agent: Agent,
}

impl Scene {
    fn new() -> Result<Scene> {
        Scene::with("")
    }

    fn with(configuration: &str) -> Result<Scene> {
        let world = World::empty()?;
        world.manifests.write("node.yaml", Node::of(&world.lab.node))?;
        for (name, ip, port) in [("four", "10.96.0.4", 30_004), ("six", "fd00:96::6", 30_006)] {
            world.manifests.write(&format!("{name}.yaml"), service(name, ip, port))?;
        }
        let config = format!("{CLUSTER_CIDR}{configuration}");
        let agent = world.agent(&config)?.arg("--kube-proxy-check-period=100ms").start()?;
        Ok(Scene { world, agent })
    }

    fn tcp(&self, address: &str, port: u16) -> Result<TcpListener> {
        self.world.lab.node.run(|| Ok(TcpListener::bind((address, port))?))
    }

    fn udp(&self, address: &str, port: u16) -> Result<UdpSocket> {
        self.world.lab.node.run(|| Ok(UdpSocket::bind((address, port))?))
    }

    /// Returns the report in the status once it has these ports and no others.
    fn wait_for(&self, expected: &[(&str, u16)]) -> Result<Value> {
        let deadline = Instant::now() + patience(PATIENCE);
        loop {
            let status = status_json(&self.world.lab.node)?;
            let report = &status["takenNodePorts"];
            assert!(report["trouble"].is_null(), "{report}");
            let ports = report["ports"].as_array().cloned().unwrap_or_default();
            let found: Vec<(&str, u64)> = ports
                .iter()
                .filter_map(|it| Some((it["protocol"].as_str()?, it["port"].as_u64()?)))
                .collect();
            if found.iter().map(|(name, port)| (*name, *port)).eq(wide(expected)) {
                return Ok(report["ports"].clone());
            }
            ensure!(Instant::now() < deadline, "expected {expected:?}: {report:#}");
        }
    }
}

fn wide<'a>(ports: &'a [(&'a str, u16)]) -> impl Iterator<Item = (&'a str, u64)> {
    ports.iter().map(|(name, port)| (*name, u64::from(*port)))
}

fn service(name: &str, ip: &str, port: u16) -> Service {
    [Protocol::Tcp, Protocol::Udp].into_iter().fold(
        Service::new(name).cluster_ips(&[ip]),
        |service, protocol| {
            let name = protocol.to_string().to_lowercase();
            service.node_port(&name, protocol, 80, port)
        },
    )
}

#[test]
fn sockets_of_both_families_and_protocols_are_found() -> Result<()> {
    let scene = Scene::new()?;
    let on_all = scene.tcp("::", 30_004)?;
    let report = scene.wait_for(&[("TCP", 30_004)])?;
    assert_eq!(report[0]["addresses"], serde_json::json!(["::"]));
    let six = scene.tcp("2001:db8:2::10", 30_006)?;
    scene.wait_for(&[("TCP", 30_004), ("TCP", 30_006)])?;
    let datagrams = scene.udp("192.0.2.10", 30_004)?;
    let all = [("TCP", 30_004), ("TCP", 30_006), ("UDP", 30_004)];
    scene.wait_for(&all)?;
    drop(on_all);
    scene.wait_for(&all[1..])?;
    drop((six, datagrams));
    scene.wait_for(&[])?;
    scene.agent.stop()
}

/// A socket of each kind that is not in the way, and then one that is: the agent has seen all.
#[test]
fn sockets_without_node_ports_are_not_reported() -> Result<()> {
    let scene = Scene::with("nodePortAddresses: [192.0.2.10/32, '2001:db8:2::10/128']\n")?;
    let _loopback = scene.tcp("127.0.0.1", 30_004)?;
    let _other_address = scene.tcp("192.0.2.11", 30_004)?;
    let _loopback_six = scene.tcp("::1", 30_006)?;
    let _other_family = scene.tcp("0.0.0.0", 30_006)?;
    let _v6_only = v6_only(&scene.world, 30_004)?;
    let _other_port = scene.tcp("0.0.0.0", 30_005)?;
    // A socket with a peer gets no packets of others.
    let _client = scene.world.lab.node.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:30004")?;
        socket.connect("192.0.2.1:53")?;
        Ok(socket)
    })?;
    let _in_the_way = scene.udp("::", 30_006)?;
    scene.wait_for(&[("UDP", 30_006)])?;
    assert!(!scene.agent.log().contains("30004"), "{}", scene.agent.log());
    scene.agent.stop()
}

#[test]
fn sockets_of_the_agent_are_not_reported() -> Result<()> {
    let scene = Scene::with("metricsBindAddress: 0.0.0.0:30004\n")?;
    let answers = |answer: &HttpAnswer| (answer.body == "ok").then_some(());
    scene.agent.wait_for_answer(30_004, "/healthz", answers)?;
    let _in_the_way = scene.tcp("::", 30_006)?;
    scene.wait_for(&[("TCP", 30_006)])?;
    scene.agent.stop()
}

/// Listens on all IPv6 addresses, and leaves the port free for IPv4.
fn v6_only(world: &World, port: u16) -> Result<OwnedFd> {
    world.lab.node.run(|| {
        let socket = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        let address = SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0));
        bind(socket.as_raw_fd(), &address)?;
        listen(&socket, Backlog::new(1)?)?;
        Ok(socket)
    })
}
