//! Clusters whose nodes have the rules of those that are compared.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use shunt_fake_apiserver::Kind;
use shunt_testbed::{Agent, ManifestDir, Node, Topology};

use super::flows::{
    ANSWER_TIMEOUT, TARGET, bulk, connected, first_answer, pin, rate, round_trips, serve,
    wait_until_answered,
};
use super::{MEASURED, Round, Size};
use crate::beside::{self, CLUSTER_CIDR, Cluster, SERVING_POD, Site, fill, post};
use crate::objects;

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
    _agent: Option<(Agent, ManifestDir)>,
}

impl Subject {
    /// Waits until the rules are there.
    fn new(
        name: &'static str,
        lab: Topology,
        (from_pod, from_node): (Vec<SocketAddrV4>, SocketAddrV4),
        agent: Option<(Agent, ManifestDir)>,
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
        Ok(Subject { name, lab, from_pod, from_node, datagrams, established, bulk, _agent: agent })
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

/// The rules of an agent with its defaults, and Services from a file.
pub(super) fn shunt((services, endpoints): Size) -> Result<Subject> {
    let lab = Topology::new()?;
    let manifests = ManifestDir::new()?;
    let others = (0..services - u32::from(MEASURED))
        .flat_map(|n| [objects::service(n), objects::slice(n, endpoints)]);
    let all = (0..MEASURED).flat_map(measured).chain(others);
    let text: String = all.map(|object| format!("---\n{object}\n")).collect();
    manifests.write("all.yaml", format!("{}{text}", Node::of(&lab.node)))?;
    let agent = Agent::builder(env!("CARGO_BIN_EXE_shunt"), &lab.node)
        .arg(format!("--cluster-cidr={CLUSTER_CIDR}"))
        .manifests(manifests.path())
        .start()?;
    let frontends = frontends(&lab);
    Subject::new("shunt", lab, frontends, Some((agent, manifests)))
}

/// The real ones, both with the same API server. What they wrote stays when they end; they and the API
/// server would only take time.
pub(super) fn kube_proxies(assets: &Path, (services, endpoints): Size) -> Result<Vec<Subject>> {
    let size = (services - u32::from(MEASURED), endpoints);
    let cluster = Cluster::filled_by(assets, size, |admin| {
        (0..MEASURED).map(measured).try_for_each(|[service, slice]| {
            post(admin, Kind::Service, &service)?;
            post(admin, Kind::EndpointSlice, &slice)
        })?;
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

/// A Service whose only endpoint is a pod of the testbed, with its slice.
fn measured(n: u16) -> [Value; 2] {
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
    [service, slice]
}

/// Runs kube-proxy until its rules are there.
fn kube_proxy(mode: beside::Subject, cluster: &Cluster) -> Result<Subject> {
    let site = Site::new(mode, cluster)?;
    let running = site.start()?;
    let frontends = frontends(&site.lab);
    let subject = Subject::new(mode.name(), site.lab, frontends, None);
    subject.with_context(|| format!("kube-proxy says:\n{}", running.log()))
}
