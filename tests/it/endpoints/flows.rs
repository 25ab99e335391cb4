//! UDP clients that keep sending from one socket: connection tracking keeps such a flow where it
//! began, so the agent has to move it when its endpoint is gone, and only then.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use shunt_testbed::{Connection, Host, Protocol};

use super::changes::{Changes, DYING, READY, SERVING, UNREADY, slices_of};
use crate::table::{Case, Frontend, Table};
use crate::world::{TARGET, World, cluster_ip_service, manifest, on_all_protocols, web};

/// Connection tracking keeps flows alive that never end by themselves: UDP.
const FLOWS: Table = Table::ALL.on(&[Protocol::Udp]);
const CONNECTIONS: Table = Table::ALL.on(&[Protocol::Tcp, Protocol::Sctp]);

const CONVERGENCE: Duration = Duration::from_secs(10);

/// What became of one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    From(String),
    Refused,
    /// Silence, or an error that does not come from a server or the node.
    Other,
}

/// A socket, always the same.
struct Sender(UdpSocket);

impl Sender {
    fn new(host: &Host, to: std::net::SocketAddr) -> Result<Self> {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = host.run(|| {
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            Ok(socket)
        })?;
        Ok(Self(socket))
    }

    fn ask(&self, patience: Duration) -> Result<Answer> {
        self.0.set_read_timeout(Some(patience))?;
        let refused = |error: &std::io::Error| match Errno::from_raw(
            error.raw_os_error().unwrap_or_default(),
        ) {
            Errno::ECONNREFUSED => Answer::Refused,
            _ => Answer::Other,
        };
        // An error may be the answer to the datagram before.
        if let Err(error) = self.0.send(b"hello") {
            return Ok(refused(&error));
        }
        let mut buffer = [0; 256];
        match self.0.recv(&mut buffer) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&buffer[..length]);
                let name = text.split(' ').next().context("an empty answer")?;
                Ok(Answer::From(name.to_owned()))
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Answer::Refused),
            Err(_) => Ok(Answer::Other),
        }
    }

    /// Goes on sending until this is the answer.
    fn until(&self, wanted: &Answer) -> Result<()> {
        let start = Instant::now();
        loop {
            let answer = self.ask(Duration::from_millis(100))?;
            if answer == *wanted {
                return Ok(());
            }
            ensure!(start.elapsed() < CONVERGENCE, "still {answer:?}, not {wanted:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What connection tracking on the node says of it: the line without what time changes.
    fn entry(&self, node: &Host) -> Result<Option<String>> {
        let (from, to) = (self.0.local_addr()?, self.0.peer_addr()?);
        let family = if to.is_ipv4() { "ipv4" } else { "ipv6" };
        let port = from.port().to_string();
        let list = node.output(
            "conntrack",
            &["-L", "-o", "id", "-f", family, "-p", "udp", "--orig-port-src", &port],
        )?;
        let to = format!("dst={} ", to.ip());
        let from = format!("src={} ", from.ip());
        let line = list.lines().find(|line| line.contains(&to) && line.contains(&from));
        // "udp 17 <seconds> src=… … [ASSURED] … id=…", where the mark comes with time.
        let lasting = |word: &&str| *word != "[ASSURED]";
        let words = |line: &str| {
            line.split_whitespace().skip(3).filter(lasting).collect::<Vec<_>>().join(" ")
        };
        Ok(line.map(words))
    }
}

fn from(server: &str) -> Answer {
    Answer::From(server.to_owned())
}

/// A sender for each cell of a table.
struct Senders<'a> {
    world: &'a World,
    table: Table,
    senders: BTreeMap<Case, Sender>,
}

impl<'a> Senders<'a> {
    fn new(world: &'a World, table: Table) -> Result<Self> {
        let new = |case: Case| Ok((case, Sender::new(&world.lab.client, case.address())?));
        let senders = table.cases().into_iter().map(new).collect::<Result<_>>()?;
        Ok(Self { world, table, senders })
    }

    #[track_caller]
    fn until(&self, step: &str, answer: &Answer) -> Result<()> {
        self.table.check(step, |case| self.senders[&case].until(answer))
    }

    /// The next datagram is answered by this server, without another try.
    #[track_caller]
    fn stay(&self, step: &str, server: &str) -> Result<()> {
        self.table.check(step, |case| {
            for _ in 0..3 {
                let answer = self.senders[&case].ask(Duration::from_secs(5))?;
                ensure!(answer == from(server), "{answer:?}");
            }
            Ok(())
        })
    }

    /// The entries of connection tracking; each has an identity, so that one that is deleted and
    /// made again differs.
    fn entries(&self) -> Result<BTreeMap<Case, Option<String>>> {
        let entry =
            |(case, sender): (&Case, &Sender)| Ok((*case, sender.entry(&self.world.lab.node)?));
        self.senders.iter().map(entry).collect()
    }

    /// Waits until none has an entry, without sending.
    fn until_forgotten(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let left: Vec<_> =
                self.entries()?.into_iter().filter(|(_, entry)| entry.is_some()).collect();
            if left.is_empty() {
                return Ok(());
            }
            ensure!(start.elapsed() < CONVERGENCE, "entries stay: {left:#?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Writes the endpoints of web and waits until they are in use.
fn endpoints(world: &World, changes: &Changes, endpoints: &[(&Host, &str)]) -> Result<()> {
    changes.write(world, "slices.yaml", slices_of("web", "all", endpoints))
}

/// A world with web on the first pod.
fn on_pod1() -> Result<World> {
    let world = World::new()?;
    world.manifests.write("web.yaml", web())?;
    let slices = slices_of("web", "all", &[(&world.lab.pod1, READY)]);
    world.manifests.write("slices.yaml", slices)?;
    Ok(world)
}

#[test]
fn a_flow_leaves_an_endpoint_that_is_gone() -> Result<()> {
    let world = on_pod1()?;
    let (pod1, pod2) = (&world.lab.pod1, &world.lab.pod2);
    let mut changes = Changes::start(&world)?;
    let senders = Senders::new(&world, FLOWS)?;
    senders.stay("one endpoint", "pod-1")?;
    endpoints(&world, &changes, &[(pod1, READY), (pod2, READY)])?;
    senders.stay("another one besides", "pod-1")?;
    endpoints(&world, &changes, &[(pod2, READY)])?;
    senders.until("its endpoint is gone", &from("pod-2"))?;
    senders.stay("and stays away", "pod-2")?;

    endpoints(&world, &changes, &[(pod1, READY), (pod2, UNREADY)])?;
    senders.until("its endpoint is not ready", &from("pod-1"))?;
    endpoints(&world, &changes, &[(pod1, DYING), (pod2, READY)])?;
    senders.until("its endpoint is dying", &from("pod-2"))?;

    changes.kill()?;
    let slices = slices_of("web", "all", &[(pod1, READY)]);
    world.manifests.write("slices.yaml", slices)?;
    senders.stay("gone while the agent is down", "pod-2")?;
    changes.restart(&world)?;
    senders.until("the agent is back", &from("pod-1"))
}

#[test]
fn a_flow_that_was_there_first_reaches_the_service() -> Result<()> {
    let world = World::new()?;
    let pod1 = [(&world.lab.pod1, READY)];
    let changes = Changes::start(&world)?;
    let senders = Senders::new(&world, FLOWS)?;
    let ask_in_vain = |step: &str| {
        FLOWS.check(step, |case| {
            let answer = senders.senders[&case].ask(Duration::from_millis(50))?;
            ensure!(!matches!(answer, Answer::From(_)), "{answer:?}");
            Ok(())
        })
    };
    ask_in_vain("nothing is there")?;
    let entries = senders.entries()?;
    assert!(entries.values().all(Option::is_some), "without an entry it is no test: {entries:#?}");
    endpoints(&world, &changes, &pod1)?;
    ask_in_vain("slices alone")?;
    changes.write(&world, "web.yaml", web())?;
    senders.until("the Service is there", &from("pod-1"))?;

    endpoints(&world, &changes, &[])?;
    senders.until("no endpoint", &Answer::Refused)?;
    endpoints(&world, &changes, &pod1)?;
    senders.until("the first endpoint", &from("pod-1"))
}

#[test]
fn a_flow_ends_with_the_last_endpoint() -> Result<()> {
    let world = on_pod1()?;
    let changes = Changes::start(&world)?;
    let senders = Senders::new(&world, FLOWS)?;
    senders.stay("one endpoint", "pod-1")?;
    endpoints(&world, &changes, &[])?;
    senders.until_forgotten()?;
    senders.until("no endpoint", &Answer::Refused)
}

#[test]
fn a_flow_ends_with_its_service() -> Result<()> {
    let world = on_pod1()?;
    let mut changes = Changes::start(&world)?;
    let senders = Senders::new(&world, FLOWS)?;
    senders.stay("one endpoint", "pod-1")?;
    world.manifests.remove("web.yaml")?;
    changes.settle(&world)?;
    senders.until_forgotten()?;

    changes.write(&world, "web.yaml", web())?;
    senders.until("it is back", &from("pod-1"))?;
    changes.kill()?;
    world.manifests.remove("web.yaml")?;
    changes.restart(&world)?;
    senders.until_forgotten()
}

#[test]
fn a_flow_ends_when_the_addresses_change() -> Result<()> {
    let world = on_pod1()?;
    let changes = Changes::start(&world)?;
    let senders = Senders::new(&world, FLOWS)?;
    senders.stay("the old addresses", "pod-1")?;
    let moved = on_all_protocols(shunt_testbed::Service::new("web"), 80, Some(30081))
        .cluster_ips(&["10.96.0.11", "fd00:96::11"])
        .external_ips(&["198.51.100.11", "2001:db8:51::11"])
        .load_balancer(&["203.0.113.11", "2001:db8:113::11"]);
    changes.write(&world, "web.yaml", moved)?;
    senders.until_forgotten()?;
    for to in ["10.96.0.11:80", "[2001:db8:113::11]:80", "192.0.2.10:30081"] {
        world.lab.from(&world.lab.client).udp(to).reaches(&["pod-1"]);
    }

    // Another Service on an address that was another's.
    changes.write(&world, "web.yaml", web())?;
    senders.until("back", &from("pod-1"))?;
    let other = on_all_protocols(shunt_testbed::Service::new("other"), 80, Some(30080))
        .cluster_ips(&["10.96.0.10", "fd00:96::10"])
        .external_ips(&["198.51.100.10", "2001:db8:51::10"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"]);
    let other = manifest(&other, "other", &[&world.lab.pod2]);
    changes.write(&world, "web.yaml", other)?;
    senders.until("another Service", &from("pod-2"))
}

/// A flow that does move: it shows when the agent has looked at connections.
struct Witness<'a> {
    world: &'a World,
    moving: Sender,
    at_pod3: bool,
}

impl<'a> Witness<'a> {
    fn new(world: &'a World, changes: &Changes) -> Result<Self> {
        let moving = Sender::new(&world.lab.client, "10.96.0.40:80".parse()?)?;
        let mut witness = Self { world, moving, at_pod3: false };
        witness.looked_at(changes)?;
        Ok(witness)
    }

    fn looked_at(&mut self, changes: &Changes) -> Result<()> {
        self.at_pod3 = !self.at_pod3;
        let lab = &self.world.lab;
        let pod = if self.at_pod3 { &lab.pod3 } else { &lab.pod2 };
        let service = cluster_ip_service("witness", &["10.96.0.40"]);
        changes.write(self.world, "witness.yaml", manifest(&service, "witness", &[pod]))?;
        self.moving.until(&from(&pod.name))
    }
}

#[test]
fn a_flow_stays_where_it_is_served() -> Result<()> {
    let world = on_pod1()?;
    let lab = &world.lab;
    let mut changes = Changes::start(&world)?;
    let senders = Senders::new(&world, FLOWS)?;
    senders.stay("one endpoint", "pod-1")?;
    let entries = senders.entries()?;
    assert!(entries.values().all(Option::is_some), "{entries:#?}");

    let mut witness = Witness::new(&world, &changes)?;

    endpoints(&world, &changes, &[(&lab.pod1, SERVING), (&lab.pod2, READY)])?;
    witness.looked_at(&changes)?;
    for case in FLOWS.cases() {
        lab.from(&lab.client).udp(case.address()).reaches(&["pod-2"]);
    }
    senders.stay("its endpoint is terminating", "pod-1")?;

    for number in 0..50 {
        let name = format!("other-{number}");
        let other = cluster_ip_service(&name, &[&format!("10.96.1.{number}")]);
        let pods = [&lab.pod1, &lab.pod2, &lab.pod3];
        world
            .manifests
            .write(&format!("{name}.yaml"), manifest(&other, &name, &pods[number % 3..]))?;
    }
    witness.looked_at(&changes)?;
    senders.stay("others came", "pod-1")?;
    for number in 0..50 {
        world.manifests.remove(&format!("other-{number}.yaml"))?;
    }
    witness.looked_at(&changes)?;
    senders.stay("others went", "pod-1")?;
    changes.write(&world, "web.yaml", web().label("tier", "front"))?;
    witness.looked_at(&changes)?;
    senders.stay("a label", "pod-1")?;

    changes.kill()?;
    changes.restart(&world)?;
    witness.looked_at(&changes)?;
    senders.stay("a restart", "pod-1")?;
    assert_eq!(senders.entries()?, entries, "entries were deleted and made again");
    Ok(())
}

/// A server of one replica whose readiness flaps loses no session: nobody else could have it. Its
/// flows end when another endpoint serves, or when it is gone.
#[test]
fn flow_stays_at_an_endpoint_that_is_not_ready_until_another_serves() -> Result<()> {
    let world = on_pod1()?;
    let lab = &world.lab;
    let mut changes = Changes::start(&world)?;
    let senders = Senders::new(&world, FLOWS)?;
    senders.stay("ready", "pod-1")?;
    let entries = senders.entries()?;
    assert!(entries.values().all(Option::is_some), "{entries:#?}");
    let mut witness = Witness::new(&world, &changes)?;

    for (conditions, step) in
        [(UNREADY, "not ready"), (READY, "ready again"), (DYING, "dying"), (UNREADY, "alive again")]
    {
        endpoints(&world, &changes, &[(&lab.pod1, conditions)])?;
        witness.looked_at(&changes)?;
        senders.stay(step, "pod-1")?;
    }
    for case in FLOWS.cases() {
        lab.from(&lab.client).udp(case.address()).refused();
    }
    changes.kill()?;
    changes.restart(&world)?;
    witness.looked_at(&changes)?;
    senders.stay("a restart", "pod-1")?;
    assert_eq!(senders.entries()?, entries, "entries were deleted and made again");

    endpoints(&world, &changes, &[(&lab.pod1, UNREADY), (&lab.pod2, READY)])?;
    senders.until("another endpoint serves", &from("pod-2"))?;
    endpoints(&world, &changes, &[(&lab.pod1, UNREADY), (&lab.pod2, UNREADY)])?;
    witness.looked_at(&changes)?;
    senders.stay("neither serves", "pod-2")?;
    endpoints(&world, &changes, &[(&lab.pod1, UNREADY)])?;
    senders.until_forgotten()?;
    senders.until("it is gone from every slice", &Answer::Refused)
}

/// What is none of the agent's business, or ends by itself.
#[test]
fn direct_flows_and_connections_are_left_alone() -> Result<()> {
    let world = on_pod1()?;
    let lab = &world.lab;
    let changes = Changes::start(&world)?;
    let tcp: Result<Vec<(Case, Connection)>> = CONNECTIONS
        .cases()
        .into_iter()
        .filter(|case| case.protocol == Protocol::Tcp)
        .map(|case| Ok((case, lab.from(&lab.client).connect(case.address())?)))
        .collect();
    let mut tcp = tcp?;
    let sctp = |node: &Host| -> Result<BTreeSet<String>> {
        let mut entries = BTreeSet::new();
        for family in ["ipv4", "ipv6"] {
            let list = node.output("conntrack", &["-L", "-o", "id", "-f", family, "-p", "sctp"])?;
            entries.extend(list.lines().filter_map(|line| {
                line.split_whitespace().find(|word| word.starts_with("id=")).map(str::to_owned)
            }));
        }
        Ok(entries)
    };
    // The testbed's associations end with their handshake; their entries shall stay for longer.
    lab.node.sysctl(&[("net/netfilter/nf_conntrack_sctp_timeout_cookie_wait", "600")])?;
    for case in CONNECTIONS.cases() {
        if case.protocol == Protocol::Sctp {
            lab.from(&lab.client).sctp(case.address()).times(1).reaches(&["pod-1"]);
        }
    }
    let associations = sctp(&lab.node)?;
    assert_eq!(associations.len(), CONNECTIONS.cases().len() / 2);

    let mut direct = Vec::new();
    for host in [&lab.node, &lab.pod2, &lab.node2] {
        for ip in lab.pod1.ips() {
            let sender = Sender::new(host, (ip, TARGET).into())?;
            sender.until(&from("pod-1"))?;
            let entry = sender.entry(&lab.node)?;
            assert!(entry.is_some(), "{host} to {ip}");
            direct.push((sender, entry));
        }
    }
    let senders = Senders::new(&world, FLOWS)?;
    senders.stay("one endpoint", "pod-1")?;

    let untouched = |tcp: &mut Vec<(Case, Connection)>, step: &str| -> Result<()> {
        for (case, connection) in tcp {
            let answer = connection.echo(step).with_context(|| format!("{case}: {step}"))?;
            assert_eq!(answer, step);
        }
        for (sender, entry) in &direct {
            assert_eq!(sender.entry(&lab.node)?, *entry, "{step}");
            assert_eq!(sender.ask(Duration::from_secs(5))?, from("pod-1"), "{step}");
        }
        assert!(associations.is_subset(&sctp(&lab.node)?), "{step}");
        Ok(())
    };
    endpoints(&world, &changes, &[(&lab.pod2, READY)])?;
    senders.until("its endpoint is gone", &from("pod-2"))?;
    untouched(&mut tcp, "the endpoint is gone")?;
    endpoints(&world, &changes, &[])?;
    senders.until_forgotten()?;
    untouched(&mut tcp, "there is no endpoint")?;
    endpoints(&world, &changes, &[(&lab.pod3, READY)])?;
    senders.until("an endpoint", &from("pod-3"))?;
    world.manifests.remove("web.yaml")?;
    changes.settle(&world)?;
    senders.until_forgotten()?;
    untouched(&mut tcp, "the Service is gone")
}

/// The node's own sockets and those of pods, too.
#[test]
fn flows_of_the_node_and_of_pods_move_too() -> Result<()> {
    let world = on_pod1()?;
    let lab = &world.lab;
    let changes = Changes::start(&world)?;
    let mut senders = Vec::new();
    for case in FLOWS.cases() {
        for host in [&lab.node, &lab.pod2] {
            let sender = Sender::new(host, case.address())?;
            sender.until(&from("pod-1"))?;
            senders.push((case, host, sender));
        }
        if case.frontend == Frontend::NodePort {
            let sender = Sender::new(&lab.node2, case.address())?;
            sender.until(&from("pod-1"))?;
            senders.push((case, &lab.node2, sender));
        }
    }
    endpoints(&world, &changes, &[(&lab.pod3, READY)])?;
    for (case, host, sender) in senders {
        sender.until(&from("pod-3")).with_context(|| format!("{case} from {host}"))?;
    }
    Ok(())
}
