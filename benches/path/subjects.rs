//! Clusters whose nodes have the rules of those that are compared.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde_json::json;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{
    Change, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, Service, ServicePort,
};
use shunt_core::plan::{DetectLocal, Options};
use shunt_fake_apiserver::{Client, Kind};
use shunt_testbed::Topology;

use super::flows::{
    ANSWER_TIMEOUT, TARGET, bulk, connected, first_answer, pin, rate, round_trips, serve,
    wait_until_answered,
};
use super::{MEASURED, Round, Size};
use crate::beside::{self, Cluster, SERVING_POD, Site};
use crate::cluster::{self, load};
use crate::memory::{fill, post};

/// New connections of each sort in a round.
const NEW: u16 = 100;
/// Connections that are opened and closed for their rate.
const RATED: usize = 200;
const FIRST_PORT: u16 = 10_000;

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;

/// The address of the n-th measured Service; the first one also has node ports.
fn frontend(n: u16) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_ff01 + u32::from(n))
}

fn name(n: u16) -> String {
    format!("measured-{n:03}")
}

/// A cluster whose node has the rules of one of those that are compared.
pub(super) struct Subject {
    pub(super) name: &'static str,
    lab: Topology,
    /// Where a pod asks, and another node.
    from_pod: Vec<SocketAddrV4>,
    from_node: SocketAddrV4,
    datagrams: UdpSocket,
    established: TcpStream,
    bulk: TcpStream,
    /// Owns its tables as long as it is there.
    _dataplane: Option<Dataplane>,
}

impl Subject {
    /// Waits until the rules are there.
    fn new(
        name: &'static str,
        lab: Topology,
        (from_pod, from_node): (Vec<SocketAddrV4>, SocketAddrV4),
        dataplane: Option<Dataplane>,
    ) -> Result<Subject> {
        serve(&lab.pod2)?;
        let of_pod = from_pod.iter().map(|to| (&lab.pod1, *to));
        for (host, to) in of_pod.chain([(&lab.node2, from_node)]) {
            wait_until_answered(host, to).with_context(|| format!("{name}: {to}"))?;
        }
        let to = from_pod[0];
        let (datagrams, established, bulk) = lab.pod1.run(|| {
            let datagrams = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, FIRST_PORT - 1))?;
            datagrams.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            datagrams.connect(to)?;
            // The server knows them by their order.
            let established = TcpStream::connect(to)?;
            established.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            established.set_nodelay(true)?;
            Ok((datagrams, established, TcpStream::connect(to)?))
        })?;
        Ok(Subject {
            name,
            lab,
            from_pod,
            from_node,
            datagrams,
            established,
            bulk,
            _dataplane: dataplane,
        })
    }

    /// Measures once all that there is to measure.
    pub(super) fn round(&mut self, number: u16) -> Result<Round> {
        let ports = FIRST_PORT + number * NEW..FIRST_PORT + (number + 1) * NEW;
        let every = self.from_pod.iter().copied().cycle();
        let measured = self.lab.pod1.run(|| {
            pin()?;
            let new = || ports.clone().zip(every.clone());
            let new_tcp = new().map(|(port, to)| connected(port, to)).collect::<Result<_>>()?;
            let new_udp = new().map(|(port, to)| first_answer(port, to)).collect::<Result<_>>()?;
            let of_tcp = round_trips(|| {
                self.established.write_all(b"x")?;
                Ok(self.established.read_exact(&mut [0])?)
            })?;
            let of_udp = round_trips(|| {
                self.datagrams.send(b"x")?;
                self.datagrams.recv(&mut [0])?;
                Ok(())
            })?;
            let rated: Vec<_> = every.clone().take(RATED).collect();
            Ok(([new_tcp, new_udp, of_tcp, of_udp], rate(&rated)?, bulk(&mut self.bulk)?))
        });
        let ([new_tcp, new_udp, tcp, udp], rate, bulk) = measured.context(self.name)?;
        let measured = self.lab.node2.run(|| {
            pin()?;
            let tcp = ports.clone().map(|port| connected(port, self.from_node));
            let tcp = tcp.collect::<Result<_>>()?;
            let udp = ports.clone().map(|port| first_answer(port, self.from_node));
            Ok((tcp, udp.collect::<Result<_>>()?))
        });
        let (node_tcp, node_udp) = measured.context(self.name)?;
        Ok(Round { times: [new_tcp, new_udp, tcp, udp, node_tcp, node_udp], rate, bulk })
    }
}

/// Nothing on the node but routes.
pub(super) fn without_rules() -> Result<Subject> {
    let lab = Topology::new()?;
    let pod = SocketAddrV4::new(lab.pod2.ipv4[0], TARGET);
    Subject::new("no Service, no rules", lab, (vec![pod], pod), None)
}

/// Connections are tracked and could be translated.
pub(super) fn tracked() -> Result<Subject> {
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
    Subject::new("no Service, connection tracking", lab, (vec![pod], pod), None)
}

/// The frontends, as a pod and another node ask for them.
fn frontends(lab: &Topology) -> (Vec<SocketAddrV4>, SocketAddrV4) {
    let from_pod = (0..MEASURED).map(|n| SocketAddrV4::new(frontend(n), PORT)).collect();
    (from_pod, SocketAddrV4::new(lab.node.ipv4[0], NODE_PORT))
}

/// The rules of shunt.
pub(super) fn shunt((services, endpoints): Size) -> Result<Subject> {
    let lab = Topology::new()?;
    let options = Options {
        detect_local: DetectLocal::ClusterCidr(vec!["10.244.0.0/14".parse::<IpNet>()?]),
        ..Options::default()
    };
    let mut dataplane = lab.node.run(|| Ok(Dataplane::open(options, "node-1", Ownership::Own)?))?;
    dataplane.apply(Change::InterfaceAddresses(lab.node.ips().collect()));
    dataplane.apply(Change::node(Node {
        name: "node-1".into(),
        addresses: vec![lab.node.ipv4[0].into()],
        pod_cidrs: Vec::new(),
        zone: None,
        eligible: true,
    }));
    for n in 0..MEASURED {
        let (service, slice) = measured(n, lab.pod2.ipv4[0]);
        dataplane.apply(Change::service(service));
        dataplane.apply(Change::slice(slice));
    }
    load(&mut dataplane, (services - u32::from(MEASURED), endpoints));
    dataplane.sync()?;
    let frontends = frontends(&lab);
    Subject::new("shunt", lab, frontends, Some(dataplane))
}

/// A Service whose only endpoint is this pod.
fn measured(n: u16, pod: Ipv4Addr) -> (Service, EndpointSlice) {
    let protocols = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
    let port = |(name, protocol): (&str, Protocol)| ServicePort {
        name: name.into(),
        protocol,
        port: PORT,
        node_port: (n == 0).then_some(NODE_PORT),
    };
    let service = Service {
        name: ObjectName::new("bench", name(n)),
        cluster_ips: vec![frontend(n).into()],
        ports: protocols.map(port).into(),
        ..cluster::service(0)
    };
    let pattern = cluster::slice(0, 1, 0);
    let endpoints = pattern.endpoints.iter().map(|endpoint| Endpoint {
        address: pod.into(),
        node: Some("node-1".into()),
        ..endpoint.clone()
    });
    let target = |(name, protocol): (&str, Protocol)| EndpointPort {
        name: name.into(),
        protocol,
        port: TARGET,
    };
    let slice = EndpointSlice {
        name: ObjectName::new("bench", format!("{}-abcde", name(n))),
        service: Some(name(n).into()),
        ports: protocols.map(target).into(),
        endpoints: endpoints.collect(),
        ..pattern
    };
    (service, slice)
}

/// The real ones, both with the same API server. What they wrote stays when they end; they and the API
/// server would only take time.
pub(super) fn kube_proxies(assets: &Path, (services, endpoints): Size) -> Result<Vec<Subject>> {
    let size = (services - u32::from(MEASURED), endpoints);
    let cluster = Cluster::filled_by(assets, size, |admin| {
        (0..MEASURED).try_for_each(|n| post_measured(admin, n))?;
        fill(admin, size.0, size.1)
    })?;
    thread::scope(|scope| {
        let both = [beside::Subject::Nftables, beside::Subject::Iptables];
        let both = both.map(|mode| {
            let cluster = &cluster;
            scope.spawn(move || kube_proxy(mode, cluster))
        });
        let join = |one: thread::ScopedJoinHandle<'_, _>| {
            one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        both.map(join).into_iter().collect()
    })
}

fn post_measured(admin: &Client, n: u16) -> Result<()> {
    let ports = [("tcp", "TCP"), ("udp", "UDP")];
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name(n), "namespace": "default"},
        "spec": {
            "type": "ClusterIP", "clusterIP": frontend(n), "clusterIPs": [frontend(n)],
            "ports": ports.map(|(name, protocol)| json!({
                "name": name, "protocol": protocol, "port": PORT, "targetPort": TARGET,
            })),
        },
    });
    if n == 0 {
        service["spec"]["type"] = json!("NodePort");
        for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
            port["nodePort"] = json!(NODE_PORT);
        }
    }
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{}-abcde", name(n)), "namespace": "default",
            "labels": {"kubernetes.io/service-name": name(n)},
        },
        "addressType": "IPv4",
        "ports": ports.map(|(name, protocol)| json!({
            "name": name, "protocol": protocol, "port": TARGET,
        })),
        "endpoints": [{
            "addresses": [SERVING_POD], "conditions": {"ready": true}, "nodeName": "node-1",
        }],
    });
    post(admin, Kind::Service, &service)?;
    post(admin, Kind::EndpointSlice, &slice)
}

/// Runs kube-proxy until its rules are there.
fn kube_proxy(mode: beside::Subject, cluster: &Cluster) -> Result<Subject> {
    let site = Site::new(mode, cluster)?;
    let running = site.start()?;
    let frontends = frontends(&site.lab);
    let subject = Subject::new(mode.name(), site.lab, frontends, None);
    subject.with_context(|| format!("kube-proxy says:\n{}", running.log()))
}
