//! `explain` beside packets: random objects, damage and packets, and what really becomes of them.
//!
//! An explanation must never claim a delivery that the packets deny, nor deny one that they show.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nfnetlink::nft::{Socket, TableFamily};
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use shunt::commands::args::Destination;
use shunt::commands::explain::{Explanation, PacketFacts, Subject, Verdict, explain, first_packet};
use shunt::dataplane::{Dataplane, KernelTables, Ownership};
use shunt_core::explain::{Code, Walk, walk};
use shunt_core::model::{
    Change, Dirty, EndpointSlice, Family, Kind, Node, ObjectName, Protocol, Store,
};
use shunt_core::plan::{Desired, Options};
use shunt_fake_nftables::{Damage, Like, NODE};
use shunt_testbed::{Host, Random, Topology, seed};

/// The port of all endpoints for UDP.
const TARGET: u16 = 5353;
/// The number of clusters, and of packets in each.
const CLUSTERS: usize = 40;
const PACKETS: usize = 60;
/// The longest wait for a packet that should come.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much longer a packet is waited for that should not come.
const LONGER: Duration = Duration::from_millis(100);

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
    let seen = agree(seed(0)?)?;
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

/// Compares explanations with packets, and counts the verdicts for IPv4 and for IPv6.
fn agree(seed: u64) -> Result<BTreeMap<(Verdict, bool), usize>> {
    let mut random = Random::new(seed);
    let config = Config { rng_seed: RngSeed::Fixed(seed), ..Config::default() };
    let mut runner = TestRunner::new(config);
    let lab = Topology::new()?;
    let hosts = [&lab.node, &lab.pod1, &lab.pod2, &lab.pod3, &lab.client];
    let receivers = Receivers::on(&hosts)?;
    let mut seen: BTreeMap<(Verdict, bool), usize> = BTreeMap::new();
    for cluster in 0..CLUSTERS {
        let objects = Objects::random(&mut runner, &lab)?;
        let mut dataplane = lab
            .node
            .run(|| Ok(Dataplane::open(objects.options.clone(), NODE, Ownership::Share)?))?;
        dataplane.apply_all(objects.changes.clone());
        dataplane.sync()?;
        let damaged = match random.below(4) {
            0 => Some(next(&missing(), &mut runner)?),
            _ => None,
        };
        if let Some((family, damage)) = &damaged {
            let mut socket = lab.node.run(|| Ok(Socket::open()?))?;
            damage.inflict(*family, &mut socket)?;
        }
        let others = foreign_table(&mut random);
        lab.node.output_with_input("nft", &["-f", "-"], &others)?;
        // Entries of earlier clusters would make packets pass by the rules.
        lab.node.output("conntrack", &["-F"])?;

        let questions: Vec<Question<'_>> =
            (0..PACKETS).filter_map(|_| objects.question(&mut random, &lab)).collect();
        let explanations = objects.explain(&lab, &questions)?;
        let certain = |(explanation, _): &(Explanation, Walk)| match may_be_foreign(explanation) {
            true => Verdict::Unknown,
            false => explanation.verdict,
        };
        let verdicts: Vec<Verdict> = explanations.iter().map(certain).collect();
        let fates = send(&questions, &receivers, &verdicts)?;
        for ((question, (explanation, way)), fate) in
            questions.iter().zip(&explanations).zip(&fates)
        {
            let context = || {
                format!(
                    "seed {seed}, cluster {cluster}, {damaged:?}: {} {} -> {}\n{fate:?}\n\
                     {explanation}\n{others}\n{:#?}\n{:#?}",
                    question.host, question.source, question.to, way, objects
                )
            };
            check(question, explanation, way, fate).with_context(context)?;
            *seen.entry((explanation.verdict, question.to.is_ipv4())).or_default() += 1;
        }
    }
    Ok(seen)
}

/// Of a rule of another program that does not always match, it is only certain that the packet does not
/// pass.
fn may_be_foreign(explanation: &Explanation) -> bool {
    [Code::ForeignDrop, Code::ForeignDropPossible].into_iter().any(|code| explanation.has(code))
}

fn check(
    question: &Question<'_>,
    explanation: &Explanation,
    way: &Walk,
    fate: &Fate,
) -> Result<()> {
    match explanation.verdict {
        Verdict::Delivered => {
            let (endpoint, source) = fate.received.context("delivered, but no endpoint got it")?;
            let choices = way.choices();
            let choice = choices
                .iter()
                .find(|choice| {
                    SocketAddr::new(choice.backend.address, choice.backend.port) == endpoint
                })
                .with_context(|| format!("{endpoint} is none of the endpoints"))?;
            let masquerades = choice.masquerade;
            // The node's own address may also be the one that it masquerades with.
            let shows = !question.host.ips().any(|ip| ip == source) || masquerades.is_none();
            ensure!(shows || question.host.name == "node-1", "not masqueraded: {masquerades:?}");
            if masquerades.is_none() {
                ensure!(source == question.source, "masqueraded as {source}");
            }
        }
        Verdict::Refused | Verdict::Dropped if may_be_foreign(explanation) => {
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
        Verdict::Partial | Verdict::Unknown => {}
    }
    Ok(())
}

impl Receivers {
    /// Receivers on every address of these hosts.
    fn on(hosts: &[&Host]) -> Result<Receivers> {
        let mut sockets = Vec::new();
        for host in hosts {
            for ip in host.ips() {
                let socket = host.run(|| Ok(UdpSocket::bind((ip, TARGET))?))?;
                socket.set_nonblocking(true)?;
                sockets.push((SocketAddr::new(ip, TARGET), socket));
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

/// Sends a packet for each question, and waits until the verdicts have come true, and a little longer for
/// what they deny.
fn send(
    questions: &[Question<'_>],
    receivers: &Receivers,
    verdicts: &[Verdict],
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
    let mut deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        receivers.take(|number, at, from| {
            if let Some(fate) = usize::try_from(number).ok().and_then(|id| fates.get_mut(id)) {
                fate.received = Some((at, from));
            }
        });
        for (fate, socket) in fates.iter_mut().zip(&sockets) {
            fate.refused |= matches!(socket.take_error(), Ok(Some(error)) if is_refusal(&error));
        }
        let mut both = verdicts.iter().zip(&fates);
        let came_true = both.all(|(verdict, fate)| match verdict {
            Verdict::Delivered => fate.received.is_some(),
            Verdict::Refused => fate.refused,
            _ => true,
        });
        if came_true {
            deadline = deadline.min(Instant::now() + LONGER);
        }
        std::thread::yield_now();
    }
    Ok(fates)
}

fn is_refusal(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionRefused
}

/// Returns a script that replaces the table of another program by a random one.
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
             meta l4proto {{ icmp, ipv6-icmp }} accept\n"
        ));
        for _ in 0..1 + random.below(3) {
            let matches = random.one_of(&[
                "ip saddr 10.244.0.11",
                "ip daddr 10.244.0.12",
                "ip6 daddr fd00:244::/64",
                "ip6 saddr fd00:244::12",
                "ip daddr 10.96.0.0/24",
                "ip saddr != 192.0.2.100",
                "udp dport 5353",
                "udp dport { 53, 80 }",
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

/// Something that is missing in shunt's tables.
fn missing() -> impl Strategy<Value = (TableFamily, Damage)> {
    let is_missing = |(_, damage): &(_, Damage)| {
        matches!(damage, Damage::DeleteElement(.., Like::It) | Damage::DeleteRule(_))
    };
    shunt_fake_nftables::damage().prop_filter("is left", is_missing)
}

/// Returns the next value of a strategy.
fn next<S: Strategy>(strategy: &S, runner: &mut TestRunner) -> Result<S::Value> {
    let tree = strategy.new_tree(runner).map_err(|reason| anyhow!("{reason}"))?;
    Ok(tree.current())
}

/// A random cluster.
#[derive(Debug)]
struct Objects {
    options: Options,
    changes: Vec<Change>,
}

impl Objects {
    fn random(runner: &mut TestRunner, lab: &Topology) -> Result<Objects> {
        let strategy = (shunt_fake_nftables::options(), vec(shunt_fake_nftables::change(), 40));
        let (options, changed) = next(&strategy, runner)?;
        let mut left = shunt_fake_nftables::Objects::default();
        for change in changed {
            match change {
                Change::Slice(slice) => left.apply(&Change::slice(on_pods(&slice, lab))),
                Change::Service(_) | Change::Gone(Kind::Service | Kind::EndpointSlice, _) => {
                    left.apply(&change);
                }
                // The node is what it is.
                _ => {}
            }
        }
        let nets = |texts: &[&str]| texts.iter().flat_map(|text| text.parse()).collect();
        let mut changes = vec![
            Change::node(Node {
                name: NODE.into(),
                addresses: lab.node.ips().collect(),
                pod_cidrs: nets(&["10.244.0.0/24", "fd00:244::/64"]),
                zone: Some("a".into()),
                eligible: true,
            }),
            Change::InterfaceAddresses(
                lab.node
                    .ips()
                    .chain([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
                    .collect(),
            ),
            Change::ServiceCidr(
                ObjectName::new("", "kubernetes"),
                nets(&["10.96.0.0/24", "fd00:96::/112"]),
            ),
        ];
        changes.extend(left.listed());
        Ok(Objects { options, changes })
    }

    /// Returns a packet that a Service may concern; `None` if the source has no such address.
    fn question<'a>(&self, random: &mut Random, lab: &'a Topology) -> Option<Question<'a>> {
        let host = *random.one_of(&[&lab.node, &lab.pod1, &lab.pod2, &lab.client]);
        let mut to: Vec<IpAddr> = lab.node.ips().collect();
        for change in &self.changes {
            let Change::Service(service) = change else { continue };
            to.extend(&service.cluster_ips);
            to.extend(&service.external_ips);
            to.extend(&service.load_balancer_ips);
            to.extend(&service.proxied_ips);
        }
        to.extend([
            IpAddr::from(Ipv4Addr::new(10, 96, 0, 200)),
            Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x200).into(),
        ]);
        let address = *random.one_of(&to);
        let is_own = lab.node.ips().any(|ip| ip == address);
        let ports = if is_own { [30_053, 30_053, 30_053, 30_001] } else { [53, 53, 53, 80] };
        let port = *random.one_of(&ports);
        let source = host.ip_like(address)?;
        Some(Question { host, source, to: SocketAddr::new(address, port) })
    }

    /// Explains all questions as the command does.
    fn explain(
        &self,
        lab: &Topology,
        questions: &[Question<'_>],
    ) -> Result<Vec<(Explanation, Walk)>> {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        for change in self.changes.clone() {
            store.apply(change, &mut dirty);
        }
        let mut desired = Desired::new(self.options.clone(), NODE);
        desired.update(&store, &dirty);
        let context = desired.node_context().context("no plan")?.clone();
        let subject = Subject { store: &store, desired: &desired, agent: None };
        lab.node.run(|| {
            let mut tables: HashMap<Family, KernelTables> = HashMap::new();
            let mut explanations = Vec::new();
            for question in questions {
                let family = Family::of(question.source);
                let is_node = question.host.name == lab.node.name;
                let (address, port) = (question.to.ip(), question.to.port());
                let protocol = Protocol::Udp.number();
                let to = Destination { address, port, protocol };
                let packet = first_packet(Some(question.source), to)?;
                ensure!(is_node == packet.from_node);
                let tables = match tables.entry(family) {
                    std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::hash_map::Entry::Vacant(place) => {
                        place.insert(KernelTables::open(&context, family)?)
                    }
                };
                let way = walk(&packet, tables)?;
                let mark = context.options.masquerade_mark();
                let mut facts = PacketFacts::gather(&packet, &way, mark, tables);
                // The receivers answer nothing.
                facts.endpoints.iter_mut().for_each(|it| it.waiting = 0);
                explanations.push((explain(&packet, &subject, Some(&way), &facts), way));
            }
            Ok(explanations)
        })
    }
}

/// The same slice with endpoints that the testbed has.
fn on_pods(slice: &EndpointSlice, lab: &Topology) -> EndpointSlice {
    let hosts = [&lab.pod1, &lab.pod2, &lab.pod3, &lab.node];
    let mut slice = slice.clone();
    slice.endpoints.truncate(hosts.len());
    for endpoint in &mut slice.endpoints {
        let number = match endpoint.address {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        let host = hosts[usize::from(number) % hosts.len()];
        endpoint.address = host.ip_like(endpoint.address).unwrap_or(endpoint.address);
        let node = host.node.as_deref().map(Arc::from);
        endpoint.node = endpoint.node.take().and(node);
    }
    slice
}
