//! `shunt.dev/load-balancing`: the same client gets the same endpoint, on every node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_testbed::{
    CLUSTER_CIDR, Echo, EndpointSlice, Host, Outcome, Protocol, Random, Service, patience, probe,
    seed,
};

use crate::endpoints::changes::{Changes, READY, slices_of};
use crate::table::{Case, Frontend, Table};
use crate::world::{SHUNT, TARGET, World, slices, status_text, web};

const VIP: &str = "10.96.0.10:80";
/// Endpoints of the node, besides those of the testbed.
const MORE_PODS: u8 = 7;
const PATIENCE: Duration = Duration::from_secs(5);

fn annotated(balancing: &str) -> Service {
    web().metadata(&format!("annotations: {{shunt.dev/load-balancing: {balancing}}}"))
}

/// A world with ten pods.
struct Pods {
    world: World,
    pods: Vec<Host>,
    _servers: Vec<Echo>,
}

impl Pods {
    fn new() -> Result<Self> {
        let world = World::new()?;
        let mut pods = vec![world.lab.pod1.clone(), world.lab.pod2.clone(), world.lab.pod3.clone()];
        let mut servers = Vec::new();
        for number in 4..4 + MORE_PODS {
            let (v4, v6) = ([10, 244, 0, 10 + number], format!("fd00:244::1{number}"));
            let pod = world.lab.add_pod(&world.lab.node, &format!("pod-{number}"), v4, &v6)?;
            servers.push(Echo::on(&pod, TARGET)?);
            pods.push(pod);
        }
        Ok(Self { world, pods, _servers: servers })
    }

    fn endpoints(&self, numbers: impl IntoIterator<Item = usize>) -> String {
        let pods: Vec<_> = numbers.into_iter().map(|n| (&self.pods[n], READY)).collect();
        slices_of("web", "all", &pods)
    }

    /// The number of servers that connections of the client reach.
    fn reached(&self) -> Result<usize> {
        let client = self.world.lab.from(&self.world.lab.client);
        let tally = client.tcp(VIP).tally(24, PATIENCE)?;
        Ok(tally.servers().with_context(|| format!("not all reached a server:\n{tally}"))?.len())
    }

    /// The server of each client: datagrams from these addresses and ports.
    fn servers_of(&self, clients: &[SocketAddr]) -> Result<Vec<String>> {
        const AT_ONCE: usize = 256;
        let mut servers = Vec::with_capacity(clients.len());
        for part in clients.chunks(AT_ONCE) {
            servers.extend(self.world.lab.client.run(|| ask(part))?);
        }
        Ok(servers)
    }
}

/// Asks from each client, in the namespace of the calling thread.
fn ask(clients: &[SocketAddr]) -> Result<Vec<String>> {
    let sockets = clients
        .iter()
        .map(|client| {
            let socket = UdpSocket::bind(client).with_context(|| format!("cannot use {client}"))?;
            socket.connect(VIP)?;
            socket.set_read_timeout(Some(patience(PATIENCE)))?;
            socket.send(b"?")?;
            Ok(socket)
        })
        .collect::<Result<Vec<_>>>()?;
    let answer = |socket: &UdpSocket| -> Result<String> {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).context("no answer")?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        Ok(text.split_whitespace().next().context("an empty answer")?.to_owned())
    };
    sockets.iter().map(answer).collect()
}

/// The client with more addresses.
fn add_addresses(client: &Host, count: u8) -> Result<Vec<IpAddr>> {
    let address = |n: u8| Ipv4Addr::new(192, 0, 2, 100 + n);
    let commands: String =
        (1..=count).map(|n| format!("addr add {}/24 dev eth0\n", address(n))).collect();
    client.ip(&commands)?;
    Ok((1..=count).map(|n| address(n).into()).collect())
}

/// Gives an agent a past: it saw other endpoints, in another order, and another kind of balancing.
fn age(pods: &Pods, changes: &Changes, random: &mut Random, last: &Service) -> Result<()> {
    let kinds = ["random", "source-hash", "source-and-port-hash"];
    for _ in 0..6 {
        let some: Vec<usize> = (0..pods.pods.len()).filter(|_| random.below(3) > 0).collect();
        pods.world.manifests.write("slices.yaml", pods.endpoints(some))?;
        changes.write(&pods.world, "web.yaml", annotated(random.one_of::<&str>(&kinds)))?;
    }
    changes.write(&pods.world, "web.yaml", last)?;
    changes.write(&pods.world, "slices.yaml", pods.endpoints((0..pods.pods.len()).rev()))
}

#[test]
fn nodes_with_different_pasts_choose_the_same_endpoint() -> Result<()> {
    const ADDRESSES: u8 = 50;
    const PORTS: u16 = 200;
    let seed = seed(0)?;
    let mut random = Random::new(seed);
    let nodes = [Pods::new()?, Pods::new()?];
    let mut servers = Vec::new();
    for (place, node) in nodes.iter().enumerate() {
        let last = annotated("source-and-port-hash");
        let addresses = add_addresses(&node.world.lab.client, ADDRESSES)?;
        if place == 1 {
            node.world.manifests.write("web.yaml", &last)?;
            node.world.manifests.write("slices.yaml", node.endpoints(0..node.pods.len()))?;
        }
        let changes = Changes::start(&node.world)?;
        if place == 0 {
            age(node, &changes, &mut random, &last).with_context(|| format!("seed {seed}"))?;
        }
        changes.settle(&node.world)?;
        let port = |n: u16| 20_000 + n;
        let clients: Vec<SocketAddr> = addresses
            .iter()
            .flat_map(|address| (0..PORTS).map(move |n| SocketAddr::new(*address, port(n))))
            .collect();
        servers.push(node.servers_of(&clients)?);
    }
    let different = servers[0].iter().zip(&servers[1]).filter(|(one, other)| one != other).count();
    ensure!(different == 0, "{different} of {} clients, seed {seed}", servers[0].len());
    // 10 000 clients on ten endpoints of 251 slots: 25 or 26 slots each.
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    servers[0].iter().for_each(|server| *counts.entry(server).or_default() += 1);
    ensure!(counts.len() == 10 && counts.values().all(|n| (850..1_150).contains(n)), "{counts:?}");
    Ok(())
}

#[test]
fn a_client_stays_with_its_endpoint_through_every_frontend() -> Result<()> {
    let pods = Pods::new()?;
    pods.world.manifests.write("web.yaml", annotated("source-hash"))?;
    pods.world.manifests.write("slices.yaml", pods.endpoints(0..10))?;
    let changes = Changes::start(&pods.world)?;
    changes.settle(&pods.world)?;
    let client = &pods.world.lab.client;
    let server = |case: Case| -> Result<String> {
        let mut servers = BTreeSet::new();
        for _ in 0..12 {
            let outcome = client.run(|| probe(case.protocol, None, case.address(), PATIENCE))?;
            let Outcome::Reached { server, .. } = outcome else { anyhow::bail!("{outcome}") };
            servers.insert(server);
        }
        ensure!(servers.len() == 1, "a client got {servers:?}");
        Ok(servers.pop_first().unwrap_or_default())
    };
    // The slots do not depend on the frontend.
    for family in crate::table::Family::ALL {
        let cases = Table::ALL.cases().into_iter().filter(|case| case.family == family);
        let all: BTreeSet<String> = cases.map(server).collect::<Result<_>>()?;
        ensure!(all.len() == 1, "frontends differ: {all:?}");
    }
    // Without the annotation, by chance. All alike: 10⁻²³.
    changes.write(&pods.world, "web.yaml", web())?;
    ensure!(pods.reached()? > 1);
    Ok(())
}

/// Of ten endpoints one goes. Its clients need another one, and few others get another one, too.
#[test]
fn few_others_move_if_an_endpoint_goes() -> Result<()> {
    const CLIENTS: u16 = 2_000;
    let pods = Pods::new()?;
    pods.world.manifests.write("web.yaml", annotated("source-and-port-hash"))?;
    pods.world.manifests.write("slices.yaml", pods.endpoints(0..10))?;
    let changes = Changes::start(&pods.world)?;
    changes.settle(&pods.world)?;
    let address = pods.world.lab.client.ipv4[0];
    let clients = |first: u16| -> Vec<SocketAddr> {
        (first..first + CLIENTS).map(|port| SocketAddr::new(address.into(), port)).collect()
    };
    let before = pods.servers_of(&clients(20_000))?;
    changes.write(&pods.world, "slices.yaml", pods.endpoints(0..9))?;
    // Entries of connection tracking keep the flows.
    pods.world.lab.node.output("conntrack", &["-F"])?;
    let after = pods.servers_of(&clients(20_000))?;
    let gone = &pods.pods[9].name;
    ensure!(!after.contains(gone));
    let moved = before.iter().zip(&after).filter(|(old, new)| *old != gone && old != new).count();
    ensure!(moved * 100 < usize::from(CLIENTS) * 12, "{moved} of {CLIENTS} moved");
    Ok(())
}

#[test]
fn explain_knows_the_endpoint_of_a_client() -> Result<()> {
    let pods = Pods::new()?;
    pods.world.manifests.write("web.yaml", annotated("source-hash"))?;
    pods.world.manifests.write("slices.yaml", pods.endpoints(0..10))?;
    let client = &pods.world.lab.client;
    let sources = add_addresses(client, 12)?;
    let changes = Changes::start(&pods.world)?;
    changes.settle(&pods.world)?;
    let case = Case {
        frontend: Frontend::ClusterIp,
        family: crate::table::Family::V4,
        protocol: shunt_testbed::Protocol::Tcp,
    };
    for source in sources {
        let Outcome::Reached { server, .. } =
            client.run(|| probe(case.protocol, Some(source), case.address(), PATIENCE))?
        else {
            anyhow::bail!("{source} reached nothing");
        };
        let from = format!("--from={source}");
        let words = ["explain", "--to", VIP, &from, "--output=json"];
        let explanation = pods.world.lab.node.output(SHUNT, &words)?;
        let explanation: Value = serde_json::from_str(&explanation)?;
        let endpoints = explanation["endpoints"].as_array().context("no endpoints")?;
        let used: Vec<&str> = endpoints
            .iter()
            .filter(|endpoint| endpoint["used"] == true)
            .filter_map(|endpoint| endpoint["address"].as_str())
            .collect();
        let pod = pods.pods.iter().find(|pod| pod.name == server).context("no such pod")?;
        ensure!(used == [pod.ipv4[0].to_string()], "{server}: {explanation:#}");
        ensure!(explanation["loadBalancing"] == "source-hash", "{explanation:#}");
    }
    Ok(())
}

/// As after `--proxy-mode=ipvs --ipvs-scheduler=sh`.
#[test]
fn the_default_follows_the_configuration() -> Result<()> {
    let pods = Pods::new()?;
    pods.world.manifests.write("web.yaml", web())?;
    pods.world.manifests.write("slices.yaml", pods.endpoints(0..10))?;
    let hashed = format!("{CLUSTER_CIDR}mode: ipvs\nipvs: {{scheduler: sh}}\n");
    let agent = pods.world.agent(&hashed)?.start()?;
    ensure!(pods.reached()? == 1);
    // nft prints the rule, with the seed that all nodes have.
    let rules = pods.world.rules()?;
    let jhash = "jhash ip saddr mod 251 seed 0x7368756e";
    ensure!(rules.contains(jhash), "no {jhash}:\n{rules}");
    agent.stop()?;
    let agent = pods.world.agent(&format!("{CLUSTER_CIDR}ipvs: {{scheduler: sh}}\n"))?.start()?;
    ensure!(pods.reached()? > 1);
    agent.wait_for_log(&["ipvs.scheduler", "has no effect in this mode"])?;
    agent.stop()?;
    let words = format!("{CLUSTER_CIDR}shunt: {{loadBalancing: source-hash}}\n");
    let agent = pods.world.agent(&words)?.start()?;
    ensure!(pods.reached()? == 1);
    agent.stop()
}

#[test]
fn an_unknown_kind_is_named_and_the_default_counts() -> Result<()> {
    let world = World::new()?;
    let pods = [&world.lab.pod1, &world.lab.pod2];
    world.manifests.write("web.yaml", annotated("roundrobin"))?;
    world.manifests.write("slices.yaml", slices("web", &pods))?;
    let agent = world.start()?;
    agent.wait_for_log(&[
        "shunt.dev/load-balancing",
        "roundrobin",
        "write random, source-hash or source-and-port-hash",
    ])?;
    world.lab.from(&world.lab.client).tcp(VIP).reaches(&["pod-1", "pod-2"]);
    agent.stop()
}

/// A slice of the Service "many" with its ports and so many endpoints.
fn many_endpoints(ports: u16, count: u16) -> EndpointSlice {
    let slice = (1..=ports).fold(EndpointSlice::v4("many"), |slice, port| {
        slice.port(&format!("port-{port}"), Protocol::Tcp, port)
    });
    let address = |n: u16| Ipv4Addr::from(0x0af4_4000 + u32::from(n)).to_string();
    (1..=count).fold(slice, |slice, n| slice.endpoint(&address(n), READY))
}

fn many_ports(ports: u16) -> Service {
    let service = Service::new("many")
        .cluster_ips(&["10.96.0.77"])
        .metadata("annotations: {shunt.dev/load-balancing: source-hash}");
    (1..=ports)
        .fold(service, |service, port| service.port(&format!("port-{port}"), Protocol::Tcp, port))
}

/// The kind of load balancing and the state of all frontends, as `shunt services` shows them.
fn shown(world: &World) -> Result<BTreeSet<(String, String)>> {
    let words = ["services", "default/many", "--output=json"];
    let shown: Value = serde_json::from_str(&world.lab.node.output(SHUNT, &words)?)?;
    let frontends = shown["services"][0]["frontends"].as_array().context("no frontends")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(frontends.iter().map(|it| (text(&it["loadBalancing"]), text(&it["state"]))).collect())
}

/// Commands compare kernel and plan: the larger tables below a step are as they should be.
#[test]
fn tables_that_stay_larger_are_no_difference() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", many_ports(1))?;
    world.manifests.write("slices.yaml", many_endpoints(1, 21))?;
    let changes = Changes::start(&world)?;
    changes.settle(&world)?;
    changes.write(&world, "slices.yaml", many_endpoints(1, 20))?;
    let rules = world.lab.node.output("nft", &["list", "map", "ip", "shunt", "service-ips"])?;
    ensure!(rules.contains("lb-source-hash-1021"), "{rules}");
    assert_eq!(shown(&world)?, [("source-hash".to_owned(), "ok".to_owned())].into());
    let diff = world.lab.node.output(SHUNT, &["diff"])?;
    ensure!(!diff.contains("lb-source-hash"), "{diff}");
    Ok(())
}

/// 500 tables of 201 endpoints would have 125 500 slots.
#[test]
fn tables_without_room_for_all_endpoints_are_left_out_and_named() -> Result<()> {
    const WHAT: &str = "would need more than 100000 elements";
    let world = World::new()?;
    world.manifests.write("web.yaml", many_ports(500))?;
    world.manifests.write("slices.yaml", many_endpoints(500, 201))?;
    let changes = Changes::start(&world)?;
    changes.settle(&world)?;
    assert_eq!(shown(&world)?, [("random".to_owned(), "too-many-elements".to_owned())].into());
    let status = status_text(&world.lab.node)?;
    let warning = format!("WARNING  Service default/many: hash tables or weights {WHAT}");
    ensure!(status.contains(&warning), "{status}");

    // With fewer endpoints there is room: 127 slots each.
    changes.write(&world, "slices.yaml", many_endpoints(500, 100))?;
    assert_eq!(shown(&world)?, [("source-hash".to_owned(), "ok".to_owned())].into());
    let log = changes.agent()?.log();
    assert_eq!(log.matches(WHAT).count(), 1, "{log}");
    Ok(())
}

#[test]
fn an_agent_that_starts_again_writes_nothing() -> Result<()> {
    let pods = Pods::new()?;
    pods.world.manifests.write("web.yaml", annotated("source-hash"))?;
    pods.world.manifests.write("slices.yaml", pods.endpoints(0..10))?;
    let agent =
        || Ok::<_, anyhow::Error>(pods.world.agent(CLUSTER_CIDR)?.arg("--own-tables=false"));
    agent()?.start()?.stop()?;
    let before = pods.world.lab.node.nft_generation()?;
    agent()?.start()?.stop()?;
    assert_eq!(pods.world.lab.node.nft_generation()?, before);
    Ok(())
}
