//! `explain` beside packets: random objects, damage and packets, and what really becomes of them.
//!
//! An explanation must never claim a delivery that the packets deny, nor deny one that they show.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use shunt::commands::explain::{
    Client, Explanation, Facts, Subject, Verdict, Way, explain, packet,
};
use shunt::dataplane::{Dataplane, KernelTables, Ownership};
use shunt_core::explain::Code;
use shunt_core::model::{
    Balancing, Change, Dirty, Endpoint, EndpointPort, EndpointSlice, Family, Hints, Node,
    ObjectName, Protocol, Service, ServicePort, Store, TrafficPolicy,
};
use shunt_core::plan::{Desired, DetectLocal, FrontendKey, NodePortAddresses, Options};
use shunt_testbed::{Host, Random, Topology, seed};

use crate::world::TARGET;

const NODE: &str = "node-1";
/// The number of clusters, and of packets in each.
const CLUSTERS: usize = 40;
const PACKETS: usize = 60;
/// The longest wait for a packet that should come.
const PATIENCE: Duration = Duration::from_secs(5);
/// The port of the receivers for packets that show that all before them have arrived.
const MARKER: u16 = 9;

/// The receivers on one host, by address and port.
struct Receivers {
    sockets: Vec<(SocketAddr, UdpSocket)>,
}

/// An address to which a packet goes, and where it comes from.
#[derive(Debug, Clone, Copy)]
struct Question<'a> {
    host: &'a Host,
    source: IpAddr,
    to: SocketAddr,
}

/// What became of a packet.
#[derive(Debug, Clone, Default)]
struct Fate {
    /// The endpoint that received it, and the source that it saw.
    received: Option<(SocketAddr, IpAddr)>,
    /// The client got an ICMP error about the port.
    refused: bool,
}

#[test]
fn explanations_agree_with_packets() -> Result<()> {
    let seen = agree(seed(0)?, CLUSTERS)?;
    // A test that meets only one kind of end shows little.
    for verdict in [Verdict::Delivered, Verdict::Refused, Verdict::Dropped, Verdict::NotAService] {
        for is_v4 in [true, false] {
            let count = seen.get(&(verdict, is_v4)).copied().unwrap_or_default();
            ensure!(count > 10, "only {count} of {verdict:?}, IPv4 {is_v4}: {seen:?}");
        }
    }
    let unknown = [true, false].map(|v4| seen.get(&(Verdict::Unknown, v4)).copied().unwrap_or(0));
    let all: usize = seen.values().sum();
    ensure!(unknown.iter().sum::<usize>() * 10 < all, "too much is unknown: {seen:?}");
    Ok(())
}

/// In cluster 15, a pod reaches itself, and a rule of another program refuses that.
#[test]
fn seed_8386751_a_pod_that_reaches_itself_is_refused() -> Result<()> {
    agree(8_386_751, 16).map(drop)
}

/// Compares explanations with packets, and counts the verdicts for IPv4 and for IPv6.
fn agree(seed: u64, clusters: usize) -> Result<BTreeMap<(Verdict, bool), usize>> {
    let mut random = Random::new(seed);
    let lab = Topology::new()?;
    let hosts = [&lab.node, &lab.pod1, &lab.pod2, &lab.pod3, &lab.client];
    let receivers = Receivers::on(&hosts)?;
    let mut seen: BTreeMap<(Verdict, bool), usize> = BTreeMap::new();
    for cluster in 0..clusters {
        let objects = Objects::random(&mut random, &lab)?;
        let mut dataplane = lab
            .node
            .run(|| Ok(Dataplane::open(objects.options.clone(), NODE, Ownership::Share)?))?;
        dataplane.apply_all(objects.changes.clone());
        dataplane.sync()?;
        let is_damaged = random.below(4) == 0 && damage(&mut random, &lab)?;
        let others = foreign_table(&mut random);
        lab.node.output_with_input("nft", &["-f", "-"], &others)?;
        // Entries of earlier clusters would make packets pass by the rules.
        lab.node.output("conntrack", &["-F"])?;

        let questions: Vec<Question<'_>> =
            (0..PACKETS).filter_map(|_| objects.question(&mut random, &lab)).collect();
        let explanations = objects.explain(&lab, &questions)?;
        let fates = send(&lab, &questions, &receivers, |id| {
            explanations[id].0.verdict == Verdict::Delivered
        })?;
        for ((question, (explanation, way)), fate) in
            questions.iter().zip(&explanations).zip(&fates)
        {
            let context = || {
                format!(
                    "seed {seed}, cluster {cluster}, damaged {is_damaged}: {} {} -> {}\n{fate:?}\n\
                     {explanation}\n{others}\n{:#?}\n{:#?}",
                    question.host, question.source, question.to, way.walk, objects
                )
            };
            check(question, explanation, way, fate).with_context(context)?;
            *seen.entry((explanation.verdict, question.to.is_ipv4())).or_default() += 1;
        }
    }
    Ok(seen)
}

fn check(question: &Question<'_>, explanation: &Explanation, way: &Way, fate: &Fate) -> Result<()> {
    match explanation.verdict {
        Verdict::Delivered => {
            let (endpoint, source) = fate.received.context("delivered, but no endpoint got it")?;
            let choices = way.walk.choices();
            let place = choices
                .iter()
                .position(|choice| {
                    SocketAddr::new(choice.backend.address, choice.backend.port) == endpoint
                })
                .with_context(|| format!("{endpoint} is none of the endpoints"))?;
            let masquerades = way.masquerades.get(place).copied().flatten();
            // The node's own address may also be the one that it masquerades with.
            let shows = !question.host.ips().any(|ip| ip == source) || masquerades.is_none();
            ensure!(shows || question.host.name == "node-1", "not masqueraded: {masquerades:?}");
            if masquerades.is_none() {
                ensure!(source == question.source, "masqueraded as {source}");
            }
        }
        // Of a rule of another program that does not always match, it is only certain that the
        // packet does not pass.
        Verdict::Refused | Verdict::Dropped if explanation.has(Code::ForeignDrop) => {
            ensure!(fate.received.is_none(), "not delivered, but an endpoint got it");
        }
        Verdict::Refused => {
            ensure!(fate.received.is_none(), "refused, but an endpoint got it");
            ensure!(fate.refused, "refused, but the client got no error");
        }
        Verdict::Dropped => {
            ensure!(fate.received.is_none(), "dropped, but an endpoint got it");
            ensure!(!fate.refused, "dropped, but the client got an error");
        }
        Verdict::NotAService => ensure!(fate.received.is_none(), "no Service, but translated"),
        Verdict::Unknown => {}
    }
    Ok(())
}

impl Receivers {
    /// Receivers on every address of these hosts.
    fn on(hosts: &[&Host]) -> Result<Receivers> {
        let mut sockets = Vec::new();
        for host in hosts {
            for (address, port) in host.ips().flat_map(|ip| [(ip, TARGET), (ip, MARKER)]) {
                let socket = host.run(|| Ok(UdpSocket::bind((address, port))?))?;
                socket.set_nonblocking(true)?;
                sockets.push((SocketAddr::new(address, port), socket));
            }
        }
        Ok(Receivers { sockets })
    }

    /// Takes what has arrived: the number in each packet, where, and from whom.
    fn take(&self, mut each: impl FnMut(u64, SocketAddr, IpAddr)) {
        let mut buffer = [0; 8];
        for (address, socket) in &self.sockets {
            while let Ok((8, from)) = socket.recv_from(&mut buffer) {
                each(u64::from_be_bytes(buffer), *address, from.ip());
            }
        }
    }
}

/// Sends a packet for each question, and waits until all must have arrived.
fn send(
    lab: &Topology,
    questions: &[Question<'_>],
    receivers: &Receivers,
    must_arrive: impl Fn(usize) -> bool,
) -> Result<Vec<Fate>> {
    let mut fates = vec![Fate::default(); questions.len()];
    let mut sockets = Vec::new();
    for (id, question) in questions.iter().enumerate() {
        let socket = question.host.run(|| Ok(UdpSocket::bind((question.source, 0))?))?;
        socket.set_nonblocking(true)?;
        let number = (id as u64).to_be_bytes();
        // Errors are about routes, or about the port, as those that come later.
        let sent = socket.connect(question.to).and_then(|()| socket.send(&number));
        fates[id].refused = sent.is_err_and(|error| is_refusal(&error));
        sockets.push(socket);
    }
    // Packets to every receiver that come behind all others.
    let mut markers: BTreeSet<u64> = BTreeSet::new();
    let hosts = [&lab.node, &lab.pod1, &lab.pod2, &lab.client];
    let to: Vec<SocketAddr> = receivers.sockets.iter().map(|(address, _)| *address).collect();
    for (place, host) in hosts.into_iter().enumerate() {
        for (number, to) in to.iter().filter(|to| to.port() == MARKER).enumerate() {
            let is_outside = host.node.is_none();
            let from = host.ip_like(to.ip()).context("no address of the family")?;
            // The client has no route to pods.
            if is_outside
                && [&lab.pod1, &lab.pod2, &lab.pod3]
                    .iter()
                    .any(|pod| pod.ips().any(|ip| ip == to.ip()))
            {
                continue;
            }
            let marker = u64::MAX - (place * 1000 + number) as u64;
            host.run(|| Ok(UdpSocket::bind((from, 0))?.send_to(&marker.to_be_bytes(), to)?))?;
            markers.insert(marker);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        receivers.take(|number, at, from| {
            if !markers.remove(&number)
                && let Some(fate) = usize::try_from(number).ok().and_then(|id| fates.get_mut(id))
            {
                fate.received = Some((at, from));
            }
        });
        for (fate, socket) in fates.iter_mut().zip(&sockets) {
            fate.refused |= matches!(socket.take_error(), Ok(Some(error)) if is_refusal(&error));
        }
        let missing =
            fates.iter().enumerate().any(|(id, fate)| must_arrive(id) && fate.received.is_none());
        if (markers.is_empty() && !missing) || Instant::now() > deadline {
            ensure!(markers.is_empty(), "markers did not arrive: {markers:?}");
            return Ok(fates);
        }
        std::thread::yield_now();
    }
}

fn is_refusal(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionRefused
}

/// Returns a script that replaces the table of another program by a random one. Markers pass it.
fn foreign_table(random: &mut Random) -> String {
    let mut script = "add table inet other\ndelete table inet other\n".to_owned();
    if random.below(3) > 0 {
        return script;
    }
    script.push_str("table inet other {\n");
    for (hook, priorities) in [
        ("prerouting", &["-300", "-150", "-50"][..]),
        ("input", &["0"]),
        ("forward", &["-10", "10"]),
        ("output", &["-150", "0"]),
        ("postrouting", &["0"]),
    ] {
        if random.below(3) > 0 {
            continue;
        }
        let priority = random.one_of(priorities);
        let policy = random.one_of(&["accept", "accept", "drop"]);
        let verdicts = if hook == "postrouting" {
            &["drop", "accept"][..]
        } else {
            &["drop", "accept", "reject"]
        };
        script.push_str(&format!(
            "chain {hook} {{ type filter hook {hook} priority {priority}; policy {policy};\n\
             udp dport {MARKER} accept\nmeta l4proto {{ icmp, ipv6-icmp }} accept\n"
        ));
        for _ in 0..1 + random.below(3) {
            let matches = random.one_of(&[
                "ip saddr 10.244.0.11",
                "ip daddr 10.244.0.12",
                "ip6 daddr fd00:244::/64",
                "ip6 saddr fd00:244::12",
                "ip daddr 10.96.0.0/24",
                "ip saddr != 192.0.2.100",
                "udp dport 8080",
                "udp dport { 80, 81 }",
                "ct state new",
                "ct state invalid",
                "ct status dnat",
                "ct original ip daddr 10.96.0.1",
                "meta nfproto ipv6",
                "meta mark and 0x4000 == 0x4000",
                "iifname \"veth-pod-1\"",
                "oifname \"veth-*\"",
                "limit rate 1/hour",
            ]);
            script.push_str(&format!("{matches} {}\n", random.one_of(verdicts)));
        }
        script.push_str("}\n");
    }
    script.push_str("}\n");
    script
}

/// Deletes a random element or rule of shunt's tables. Returns false if there is none.
fn damage(random: &mut Random, lab: &Topology) -> Result<bool> {
    let family = *random.one_of(&["ip", "ip6"]);
    let set = *random.one_of(&[
        "service-ips",
        "endpoints",
        "cluster-ips",
        "service-nodeports",
        "nodeport-endpoints",
        "external-ips",
        "masquerade-services",
        "short-circuit",
        "hairpin",
    ]);
    if random.below(4) == 0 {
        let chain = *random.one_of(&["services", "nat-prerouting", "external", "nodeports"]);
        let listing = lab.node.output("nft", &["-a", "list", "chain", family, "shunt", chain])?;
        let handles: Vec<&str> = listing
            .lines()
            .filter(|line| !line.contains("chain ") && !line.contains("type nat"))
            .filter_map(|line| line.rsplit_once("# handle ").map(|(_, handle)| handle))
            .collect();
        if handles.is_empty() {
            return Ok(false);
        }
        let handle = *random.one_of(&handles);
        lab.node.output("nft", &["delete", "rule", family, "shunt", chain, "handle", handle])?;
        return Ok(true);
    }
    let json = lab
        .node
        .output("nft", &["-j", "list", "set", family, "shunt", set])
        .or_else(|_| lab.node.output("nft", &["-j", "list", "map", family, "shunt", set]))?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let listed = json["nftables"].as_array().into_iter().flatten();
    let found = listed.filter_map(|it| it.get("set").or(it.get("map"))).next();
    let elements = found.and_then(|set| set["elem"].as_array()).cloned().unwrap_or_default();
    if elements.is_empty() {
        return Ok(false);
    }
    let element = random.one_of(&elements);
    let command = serde_json::json!({"nftables": [{"delete": {"element": {
        "family": family, "table": "shunt", "name": set, "elem": [element]}}}]});
    lab.node.output_with_input("nft", &["-j", "-f", "-"], &command.to_string())?;
    Ok(true)
}

/// A random cluster.
#[derive(Debug)]
struct Objects {
    options: Options,
    changes: Vec<Change>,
    services: Vec<Service>,
}

impl Objects {
    fn random(random: &mut Random, lab: &Topology) -> Result<Objects> {
        let nets = |texts: &[&str]| -> Result<Vec<IpNet>> {
            Ok(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
        };
        let pods = nets(&["10.244.0.0/24", "fd00:244::/64"])?;
        let options = Options {
            masquerade_all: random.below(5) == 0,
            detect_local: match random.below(4) {
                0 => DetectLocal::Off,
                1 => DetectLocal::ClusterCidr(nets(&["10.244.0.0/16", "fd00:244::/48"])?),
                2 => DetectLocal::NodeCidr,
                _ => DetectLocal::InterfaceNamePrefix("veth-".to_owned()),
            },
            node_port_addresses: match random.below(3) {
                0 => NodePortAddresses::Primary,
                1 => NodePortAddresses::Cidrs(Vec::new()),
                _ => NodePortAddresses::Cidrs(nets(&["192.0.2.11/32", "2001:db8:2::11/128"])?),
            },
            ..Options::default()
        };
        let mut changes = vec![
            Change::node(Node {
                name: NODE.into(),
                addresses: lab.node.ips().collect(),
                pod_cidrs: pods,
                zone: Some("a".into()),
                eligible: true,
            }),
            Change::InterfaceAddresses(
                lab.node
                    .ips()
                    .chain([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
                    .collect(),
            ),
            Change::ServiceCidr("kubernetes".into(), nets(&["10.96.0.0/24", "fd00:96::/112"])?),
        ];
        let services: Vec<Service> =
            (1..=6).map(|n| random_service(random, n)).collect::<Result<_>>()?;
        for service in &services {
            changes.push(Change::service(service.clone()));
            changes.extend(random_slices(random, lab, service).into_iter().map(Change::slice));
        }
        changes.push(Change::Synced);
        Ok(Objects { options, changes, services })
    }

    /// Returns a packet that a Service may concern; `None` if the source has no such address.
    fn question<'a>(&self, random: &mut Random, lab: &'a Topology) -> Option<Question<'a>> {
        let host = *random.one_of(&[&lab.node, &lab.pod1, &lab.pod2, &lab.client]);
        let mut to: Vec<IpAddr> = lab.node.ips().collect();
        for service in &self.services {
            to.extend(&service.cluster_ips);
            to.extend(&service.external_ips);
            to.extend(&service.load_balancer_ips);
            to.extend(&service.proxied_ips);
        }
        to.extend([
            IpAddr::from(Ipv4Addr::new(10, 96, 0, 200)),
            Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x200).into(),
        ]);
        let mut ports = vec![80, 81, 82];
        ports.extend(self.services.iter().flat_map(|it| &it.ports).filter_map(|it| it.node_port));
        let address = *random.one_of(&to);
        let is_own = lab.node.ips().any(|ip| ip == address);
        let port = match is_own {
            true => 30_080 + random.below(8) as u16,
            false => *random.one_of(&ports),
        };
        let source = host.ip_like(address)?;
        Some(Question { host, source, to: SocketAddr::new(address, port) })
    }

    /// Explains all questions as the command does.
    fn explain(
        &self,
        lab: &Topology,
        questions: &[Question<'_>],
    ) -> Result<Vec<(Explanation, Way)>> {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        for change in self.changes.clone() {
            store.apply(change, &mut dirty);
        }
        let mut desired = Desired::new(self.options.clone(), NODE);
        desired.update(&store, &dirty);
        let context = desired.node_context().context("no plan")?.clone();
        let subject = Subject { store: &store, desired: &desired, status: None };
        lab.node.run(|| {
            let mut tables: HashMap<Family, KernelTables> = HashMap::new();
            let mut explanations = Vec::new();
            for question in questions {
                let family = Family::of(question.source);
                let is_node = question.host.name == lab.node.name;
                let client = Client::find(Some(question.source), question.to.ip())?;
                let packet =
                    packet(&client, question.to.ip(), Protocol::Udp.number(), question.to.port());
                ensure!(is_node == (packet.entry == shunt_core::explain::Entry::Node));
                let tables = match tables.entry(family) {
                    std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::hash_map::Entry::Vacant(place) => {
                        place.insert(KernelTables::open(&context, family)?)
                    }
                };
                let way = Way::in_kernel(&packet, tables)?;
                let key: Option<FrontendKey> = None;
                let mark = context.options.masquerade_mark();
                let facts = Facts::gather(&packet, &client, &way, key, mark, tables);
                explanations.push((explain(&packet, &subject, Some(&way), &facts), way));
            }
            Ok(explanations)
        })
    }
}

/// How the addresses of Services begin, in both families.
type Network = [&'static str; 2];
const CLUSTER_IPS: Network = ["10.96.0.", "fd00:96::"];
const EXTERNAL_IPS: Network = ["198.51.100.", "2001:db8:51::"];
const VIPS: Network = ["203.0.113.", "2001:db8:113::"];

fn addresses(network: Network, n: usize) -> Result<[IpAddr; 2]> {
    let [v4, v6] = network.map(|begin| format!("{begin}{n}").parse());
    Ok([v4?, v6?])
}

fn random_service(random: &mut Random, n: usize) -> Result<Service> {
    let of_families = |random: &mut Random, [v4, v6]: [IpAddr; 2]| match random.below(4) {
        0 => vec![v4],
        1 => vec![v6],
        _ => vec![v4, v6],
    };
    let cluster = of_families(random, addresses(CLUSTER_IPS, n)?);
    // Few numbers, so that Services conflict.
    let some = |random: &mut Random, network: Network, first: usize| -> Result<Vec<IpAddr>> {
        let addresses = addresses(network, first + random.below(5))?;
        Ok(if random.below(4) == 0 { Vec::new() } else { of_families(random, addresses) })
    };
    let mut external = some(random, EXTERNAL_IPS, 1)?;
    if random.below(8) == 0 {
        external.push(addresses(CLUSTER_IPS, 1 + random.below(6))?[0]);
    }
    let policy = |random: &mut Random| match random.below(3) {
        0 => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    };
    let ranges = ["192.0.2.100/32", "10.244.0.0/24", "192.0.2.0/28", "2001:db8:2::/64"];
    let source_ranges = match random.below(3) {
        0 => (0..1 + random.below(2))
            .map(|_| random.one_of(&ranges).parse())
            .collect::<Result<_, _>>()?,
        _ => Vec::new(),
    };
    let has_node_ports = random.below(2) == 0;
    let port = |random: &mut Random, name: &str, port| ServicePort {
        name: name.into(),
        protocol: if random.below(6) == 0 { Protocol::Tcp } else { Protocol::Udp },
        port,
        node_port: has_node_ports.then(|| 30_080 + random.below(8) as u16),
    };
    let mut ports = vec![port(random, "a", 80)];
    if random.below(3) == 0 {
        let mut second = port(random, "b", 81);
        if second.node_port == ports[0].node_port {
            second.node_port = None;
        }
        ports.push(second);
    }
    Ok(Service {
        name: ObjectName::new("default", format!("service-{n}")),
        created: (random.below(3) > 0).then_some(random.below(3) as i64),
        cluster_ips: cluster,
        external_ips: external,
        load_balancer_ips: some(random, VIPS, 1)?,
        proxied_ips: some(random, VIPS, 100)?,
        source_ranges,
        ports,
        internal_policy: policy(random),
        external_policy: policy(random),
        affinity_seconds: (random.below(4) == 0).then_some(60),
        balancing: *random.one_of(&[
            None,
            None,
            Some(Balancing::SourceHash),
            Some(Balancing::SourceAndPortHash),
        ]),
        health_check_node_port: None,
    })
}

fn random_slices(random: &mut Random, lab: &Topology, service: &Service) -> Vec<EndpointSlice> {
    let mut slices = Vec::new();
    for family in Family::ALL {
        if random.below(6) == 0 {
            continue;
        }
        let mut endpoints = Vec::new();
        for host in [&lab.pod1, &lab.pod2, &lab.pod3, &lab.node] {
            let Some(address) = host.ips().find(|ip| Family::of(*ip) == family) else { continue };
            if random.below(2) == 0 || (host.name == lab.node.name && random.below(2) == 0) {
                continue;
            }
            let state = random.below(6);
            endpoints.push(Endpoint {
                address,
                ready: state > 1,
                serving: state > 0,
                terminating: state <= 1 && random.below(2) == 0,
                node: host.node.as_deref().filter(|_| random.below(10) > 0).map(Arc::from),
                hints: match random.below(4) {
                    0 => {
                        let zone = Arc::from(*random.one_of(&["a", "b"]));
                        Hints::boxed([zone].into(), Box::default())
                    }
                    _ => None,
                },
            });
        }
        let names: &[&str] = if random.below(8) == 0 { &["x"] } else { &["a", "b"] };
        let protocol = if random.below(10) == 0 { Protocol::Tcp } else { Protocol::Udp };
        let port = |name: &&str| EndpointPort { name: (*name).into(), protocol, port: TARGET };
        slices.push(EndpointSlice {
            name: ObjectName::new("default", format!("{}-{family}", service.name.name)),
            service: Some(service.name.name.clone()),
            family,
            weight: *random.one_of(&[None, None, None, Some(0), Some(1), Some(300)]),
            ports: names.iter().map(port).collect(),
            endpoints,
        });
    }
    slices
}
