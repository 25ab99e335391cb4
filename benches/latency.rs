//! Connections of a pod through its node: how long the first answer of a new one takes, and a round
//! trip of one that is established. Beside shunt: no rules at all, connection tracking without rules
//! that any packet meets, and kube-proxy in its nftables mode.
//!
//! Each has a small cluster of its own in the same process. They are measured in turns, round after
//! round, so that whatever else the machine does hits all alike. Client and server are on one
//! processor: otherwise the time is mostly that of waking up another one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;
use serde_json::json;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{
    Change, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, Service, ServicePort,
};
use shunt_core::plan::{DetectLocal, Options};
use shunt_fake_apiserver::{Gate, Kind, Kubeconfig, Kubernetes, Program, TOKEN};
use shunt_testbed::{Netns, Scratch, Topology};

use super::Size;
use super::cluster::{self, load};
use super::memory::{fill, post};
use super::table::Table;

/// kube-proxy needs minutes for 10 000 Services of ten endpoints, and packets meet one anyway.
const SIZES: [Size; 2] = [(100, 2), (10_000, 2)];
const ROUNDS: u16 = 45;
/// New connections of each sort in a round, and round trips of an established one.
const NEW: u16 = 100;
const TRIPS: usize = 200;
/// Round trips that are not counted: caches are filled.
const WARM_UP: usize = 20;
const FIRST_PORT: u16 = 10_000;
/// The processor that all packets are handled on.
const CPU: usize = 0;

const FRONTEND: Ipv4Addr = Ipv4Addr::new(10, 96, 255, 1);
const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const TARGET: u16 = 8080;
/// A packet that is not answered by then is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const PROGRAMMED_TIMEOUT: Duration = Duration::from_secs(600);

/// What is measured: the words of a row.
const SORTS: [&str; 6] = [
    "a pod's new UDP flow, first answer",
    "a pod's new TCP connection",
    "established UDP flow, round trip",
    "established TCP connection, round trip",
    "node port from another node, new UDP flow",
    "node port from another node, new TCP conn.",
];

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        measure_size(table, *size).expect("round trips");
    }
}

fn measure_size(table: &mut Table, size: Size) -> Result<()> {
    let mut subjects = vec![shunt(size)?, without_rules()?, tracked()?];
    match Kubernetes::installed_with(&["kube-proxy"]) {
        Ok(assets) => subjects.push(kube_proxy(&assets, size)?),
        Err(reason) => {
            let absent = "kube-proxy: not measured, see above";
            println!("kube-proxy beside shunt: not measured: {reason}");
            table.not_measured("a pod's connections", size, absent);
        }
    }
    // The first round is not counted.
    for round in 0..=ROUNDS {
        for subject in &mut subjects {
            let times = subject.round(round)?;
            if round > 0 {
                for (all, times) in subject.times.iter_mut().zip(times) {
                    all.extend(times);
                }
            }
        }
    }
    for subject in &mut subjects {
        subject.times.iter_mut().for_each(|times| times.sort_unstable());
    }
    let Some((ours, others)) = subjects.split_first() else { return Ok(()) };
    for (sort, words) in SORTS.iter().enumerate() {
        for percent in [50, 99] {
            let own = quantile(&ours.times[sort], percent);
            let what = format!("{words}: {percent} %");
            for other in others {
                let theirs = quantile(&other.times[sort], percent);
                let n = ours.times[sort].len();
                table.of(n).times(&what, size, own, other.name, theirs);
            }
        }
    }
    Ok(())
}

/// Of times in order.
fn quantile(times: &[Duration], percent: usize) -> Duration {
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

/// A cluster whose node has the rules of one of those that are compared.
struct Subject {
    name: &'static str,
    lab: Topology,
    /// Where a pod asks, and another node.
    from_pod: SocketAddrV4,
    from_node: SocketAddrV4,
    established: (UdpSocket, TcpStream),
    times: [Vec<Duration>; SORTS.len()],
    /// Owns its tables as long as it is there.
    _dataplane: Option<Dataplane>,
}

impl Subject {
    fn new(
        name: &'static str,
        lab: Topology,
        [from_pod, from_node]: [SocketAddrV4; 2],
        dataplane: Option<Dataplane>,
    ) -> Result<Subject> {
        serve(&lab.pod2)?;
        for (host, to) in [(&lab.pod1, from_pod), (&lab.node2, from_node)] {
            wait_until_answered(host, to).with_context(|| format!("{name}: {to}"))?;
        }
        let established = lab.pod1.run(|| {
            let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, FIRST_PORT - 1))?;
            udp.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            udp.connect(from_pod)?;
            let tcp = TcpStream::connect(from_pod)?;
            tcp.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            tcp.set_nodelay(true)?;
            Ok((udp, tcp))
        })?;
        let times = Default::default();
        Ok(Subject { name, lab, from_pod, from_node, established, times, _dataplane: dataplane })
    }

    /// The times of one round, in the order of [`SORTS`].
    fn round(&mut self, round: u16) -> Result<[Vec<Duration>; SORTS.len()]> {
        let ports = FIRST_PORT + round * NEW..FIRST_PORT + (round + 1) * NEW;
        let (udp, tcp) = &mut self.established;
        let measured = self.lab.pod1.run(|| {
            pin()?;
            let new_udp = ports.clone().map(|port| first_answer(port, self.from_pod));
            let new_udp = new_udp.collect::<Result<_>>()?;
            let new_tcp = ports.clone().map(|port| connected(port, self.from_pod));
            let new_tcp = new_tcp.collect::<Result<_>>()?;
            let mut buffer = [0; 64];
            let of_udp = round_trips(|| {
                udp.send(b"x")?;
                udp.recv(&mut buffer)?;
                Ok(())
            })?;
            let of_tcp = round_trips(|| {
                tcp.write_all(b"x")?;
                tcp.read_exact(&mut buffer[..1])?;
                Ok(())
            })?;
            Ok([new_udp, new_tcp, of_udp, of_tcp])
        });
        let [new_udp, new_tcp, udp, tcp] = measured.with_context(|| self.name)?;
        let measured = self.lab.node2.run(|| {
            pin()?;
            let udp = ports.clone().map(|port| first_answer(port, self.from_node));
            let udp = udp.collect::<Result<_>>()?;
            let tcp = ports.clone().map(|port| connected(port, self.from_node));
            Ok((udp, tcp.collect::<Result<_>>()?))
        });
        let (node_udp, node_tcp) = measured.with_context(|| self.name)?;
        Ok([new_udp, new_tcp, udp, tcp, node_udp, node_tcp])
    }
}

/// Nothing on the node but routes.
fn without_rules() -> Result<Subject> {
    let lab = Topology::new()?;
    let pod = SocketAddrV4::new(lab.pod2.ipv4[0], TARGET);
    Subject::new("no rules, to the pod itself", lab, [pod, pod], None)
}

/// Connections are tracked and could be translated.
fn tracked() -> Result<Subject> {
    let lab = Topology::new()?;
    // Only a rule makes the kernel track connections; no packet meets it.
    lab.node.nft(
        "table ip empty {
             chain prerouting { type nat hook prerouting priority dstnat; }
             chain postrouting { type nat hook postrouting priority srcnat; }
             chain unused { ct state new accept; }
         }",
    )?;
    let pod = SocketAddrV4::new(lab.pod2.ipv4[0], TARGET);
    Subject::new("conntrack, empty nat chains", lab, [pod, pod], None)
}

/// The frontends, as a pod and another node ask for them.
fn frontends(lab: &Topology) -> [SocketAddrV4; 2] {
    [SocketAddrV4::new(FRONTEND, PORT), SocketAddrV4::new(lab.node.ipv4[0], NODE_PORT)]
}

fn shunt(size: Size) -> Result<Subject> {
    let lab = Topology::new()?;
    let options = Options {
        detect_local: DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse::<IpNet>()?]),
        ..Options::default()
    };
    let mut dataplane = lab.node.run(|| Ok(Dataplane::open(options, "node-1", Ownership::Own)?))?;
    let protocols = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
    let port = |(name, protocol): (&str, Protocol)| ServicePort {
        name: name.into(),
        protocol,
        port: PORT,
        node_port: Some(NODE_PORT),
    };
    let service = Service {
        name: ObjectName::new("bench", "measured"),
        cluster_ips: vec![FRONTEND.into()],
        ports: protocols.map(port).into(),
        ..cluster::service(0)
    };
    let pattern = cluster::slice(0, 1, 0);
    let endpoints = pattern.endpoints.iter().map(|endpoint| Endpoint {
        address: lab.pod2.ipv4[0].into(),
        node: Some("node-1".into()),
        ..endpoint.clone()
    });
    let target = |(name, protocol): (&str, Protocol)| EndpointPort {
        name: name.into(),
        protocol,
        port: TARGET,
    };
    let slice = EndpointSlice {
        name: ObjectName::new("bench", "measured-abcde"),
        service: Some("measured".into()),
        ports: protocols.map(target).into(),
        endpoints: endpoints.collect(),
        ..pattern
    };
    let addresses = vec![lab.node.ipv4[0].into()];
    dataplane.apply(Change::InterfaceAddresses(lab.node.ips().collect()));
    dataplane.apply(Change::Node(Node {
        name: "node-1".into(),
        addresses,
        pod_cidrs: Vec::new(),
        zone: None,
        eligible: true,
    }));
    dataplane.apply(Change::service(service));
    dataplane.apply(Change::slice(slice));
    load(&mut dataplane, size);
    dataplane.sync()?;
    let frontends = frontends(&lab);
    Subject::new("shunt", lab, frontends, Some(dataplane))
}

/// The real one. What it wrote stays when it ends; it and the API server would only take time.
fn kube_proxy(assets: &Path, (services, endpoints): Size) -> Result<Subject> {
    let lab = Topology::new()?;
    let kubernetes = Kubernetes::start(assets)?;
    let gate = Gate::open(&lab.node, kubernetes.connector())?;
    let kubeconfig = Kubeconfig::new(&format!("https://{}", gate.address()))?
        .authority(&kubernetes.authority().pem())?
        .token_file(TOKEN)?;
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
        "status": {"addresses": [{"type": "InternalIP", "address": lab.node.ipv4[0]}]},
    });
    kubernetes.put(&node.to_string())?;
    let ports = [("tcp", "TCP"), ("udp", "UDP")];
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "measured", "namespace": "default"},
        "spec": {
            "type": "NodePort", "clusterIP": FRONTEND, "clusterIPs": [FRONTEND],
            "ports": ports.map(|(name, protocol)| json!({
                "name": name, "protocol": protocol, "port": PORT,
                "targetPort": TARGET, "nodePort": NODE_PORT,
            })),
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "measured-abcde", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "measured"},
        },
        "addressType": "IPv4",
        "ports": ports.map(|(name, protocol)| json!({
            "name": name, "protocol": protocol, "port": TARGET,
        })),
        "endpoints": [{
            "addresses": [lab.pod2.ipv4[0]], "conditions": {"ready": true}, "nodeName": "node-1",
        }],
    });
    post(kubernetes.admin(), Kind::Service, &service)?;
    post(kubernetes.admin(), Kind::EndpointSlice, &slice)?;
    fill(kubernetes.admin(), services, endpoints)?;
    let folder = Scratch::new()?;
    let file = folder.path().join("config.yaml");
    std::fs::write(
        &file,
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             mode: nftables\nconntrack: {{maxPerCore: 0, min: 0}}\n\
             clientConnection: {{kubeconfig: {:?}}}\n\
             detectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16\n",
            kubeconfig.path()
        ),
    )?;
    let arguments =
        [format!("--config={}", file.display()), "--hostname-override=node-1".to_owned()];
    let program = assets.join("kube-proxy");
    let program = Program::start(&lab.node, &program, &arguments, folder.path())?;
    let frontends = frontends(&lab);
    let subject = Subject::new("kube-proxy, nftables mode", lab, frontends, None);
    subject.with_context(|| format!("kube-proxy says:\n{}", program.log().unwrap_or_default()))
}

/// Answers on the port of the target, until this process ends: every datagram, and on the first
/// connection every byte. Later connections are closed at once.
fn serve(host: &Netns) -> Result<()> {
    let (udp, tcp) = host.run(|| {
        let any = (Ipv4Addr::UNSPECIFIED, TARGET);
        Ok((UdpSocket::bind(any)?, TcpListener::bind(any)?))
    })?;
    thread::Builder::new().name("udp".into()).spawn(move || -> Result<()> {
        pin()?;
        let mut buffer = [0; 64];
        loop {
            let (length, from) = udp.recv_from(&mut buffer)?;
            udp.send_to(&buffer[..length], from)?;
        }
    })?;
    thread::Builder::new().name("tcp".into()).spawn(move || -> Result<()> {
        pin()?;
        let (mut first, _) = tcp.accept()?;
        first.set_nodelay(true)?;
        thread::Builder::new().name("established".into()).spawn(move || -> Result<()> {
            pin()?;
            let mut buffer = [0; 1];
            loop {
                first.read_exact(&mut buffer)?;
                first.write_all(&buffer)?;
            }
        })?;
        loop {
            drop(tcp.accept()?);
        }
    })?;
    Ok(())
}

/// Asks until there is an answer: rules are written by then.
fn wait_until_answered(host: &Netns, to: SocketAddrV4) -> Result<()> {
    host.run(|| {
        let started = Instant::now();
        while started.elapsed() < PROGRAMMED_TIMEOUT {
            // A new flow every time: an entry of connection tracking would outlive new rules.
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_read_timeout(Some(Duration::from_millis(200)))?;
            socket.connect(to)?;
            if socket.send(b"x").and_then(|_| socket.recv(&mut [0; 1])).is_ok() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        bail!("no answer from {to} within {PROGRAMMED_TIMEOUT:?}")
    })
}

/// Keeps this thread on the one processor.
fn pin() -> Result<()> {
    let mut set = CpuSet::new();
    set.set(CPU)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// From sending the first datagram of a flow to its answer.
fn first_answer(port: u16, to: SocketAddrV4) -> Result<Duration> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket.connect(to)?;
    let started = Instant::now();
    socket.send(b"x")?;
    let answered = socket.recv(&mut [0; 1]);
    let took = started.elapsed();
    answered.with_context(|| format!("no answer from {to} to port {port}"))?;
    Ok(took)
}

/// How long `connect()` takes. The connection is reset afterwards.
fn connected(port: u16, to: SocketAddrV4) -> Result<Duration> {
    let socket: OwnedFd =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    bind(socket.as_raw_fd(), &SockaddrIn::from(from))?;
    setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    let to = SockaddrIn::from(to);
    let started = Instant::now();
    connect(socket.as_raw_fd(), &to)?;
    Ok(started.elapsed())
}

fn round_trips(mut trip: impl FnMut() -> Result<()>) -> Result<Vec<Duration>> {
    for _ in 0..WARM_UP {
        trip()?;
    }
    let mut times = Vec::new();
    for _ in 0..TRIPS {
        let started = Instant::now();
        trip()?;
        times.push(started.elapsed());
    }
    Ok(times)
}
