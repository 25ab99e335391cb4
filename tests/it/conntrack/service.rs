//! A Service in the testbed one of whose two endpoints is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use shunt::flows::{Conntrack, Sweep, spawn};
use shunt_core::model::{Family, Protocol};
use shunt_core::plan::{Flows, FrontendKey};
use shunt_testbed::{Connection, Echo, Netns, Topology, probe};

use super::flows::{Flow, flows, flows_with, frontend, serving, socket, sweep};

/// Clients with these source ports are sent to the first pod, …
const TO_POD1: u16 = 41_000;
/// … with these to the second. All others too.
const TO_POD2: u16 = 42_000;
/// A client with this one is put into a zone of its own.
const ZONED: u16 = 42_777;

/// What the tests need to know of a family.
struct Names {
    family: Family,
    /// The client's, the node's and the pods' addresses.
    client: &'static str,
    node: &'static str,
    pods: [&'static str; 2],
    /// The frontends of the Service that is swept.
    swept: &'static [&'static str],
    node_port: u16,
    /// One of another Service.
    other: &'static str,
    /// One that no rule translates.
    untranslated: &'static str,
}

const NAMES: [Names; 2] = [
    Names {
        family: Family::V4,
        client: "192.0.2.100",
        node: "192.0.2.10",
        pods: ["10.244.0.11:8080", "10.244.0.12:8080"],
        swept: &["10.96.0.10:53", "203.0.113.10:53", "198.51.100.10:5353", "192.0.2.10:30053"],
        node_port: 30053,
        other: "10.96.0.20:53",
        untranslated: "10.96.0.30:53",
    },
    Names {
        family: Family::V6,
        client: "2001:db8:2::100",
        node: "2001:db8:2::10",
        pods: ["[fd00:244::11]:8080", "[fd00:244::12]:8080"],
        swept: &[
            "[fd00:96::10]:53",
            "[2001:db8:113::10]:53",
            "[2001:db8:51::10]:5353",
            "[2001:db8:2::10]:30053",
        ],
        node_port: 30053,
        other: "[fd00:96::20]:53",
        untranslated: "[fd00:96::30]:53",
    },
];

impl Names {
    /// Rules that translate the frontends, by the port that a client sends from.
    fn rules(&self) -> String {
        let family = if self.family == Family::V4 { "ip" } else { "ip6" };
        let rule = |frontend: &&str| {
            let (to, [pod1, pod2]) = (socket(frontend), self.pods);
            let protocols = "meta l4proto { tcp, udp, sctp }";
            let matches = format!("{family} daddr {} {protocols} th dport {}", to.ip(), to.port());
            let range = format!("th sport {TO_POD1}-{}", TO_POD2 - 1);
            format!("{matches} {range} dnat to {pod1}\n{matches} dnat to {pod2}\n")
        };
        let rules: String = self.swept.iter().chain([&self.other]).map(rule).collect();
        format!(
            "table {family} hand {{
                chain zones {{
                    type filter hook prerouting priority raw
                    udp sport {ZONED} ct zone set 7
                }}
                chain prerouting {{
                    type nat hook prerouting priority dstnat
                    jump translate
                }}
                chain translate {{ {rules} }}
            }}"
        )
    }

    /// A sweep of the Service, which the first pod serves.
    fn sweep(&self) -> Sweep {
        let pod1 = serving(&self.pods[..1]);
        let keys = self.swept.iter().chain([&self.untranslated]);
        let keys = keys.map(|text| frontend(Protocol::Udp, text)).filter(
            |key| !matches!(key, FrontendKey::Address(_, _, port) if *port == self.node_port),
        );
        let node_port = FrontendKey::NodePort(self.family, Protocol::Udp, self.node_port);
        let flows = keys.chain([node_port]).map(|key| (key, pod1.clone()));
        let node_addresses = BTreeSet::from([self.node.parse().expect("an address")]);
        Sweep::new(Flows::from_iter(flows), node_addresses)
    }

    fn client(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.client.parse().expect("an address"), port)
    }
}

/// A datagram socket; it answers with the name of the server that it reached.
struct Client {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Client {
    fn new(ns: &Netns, from: SocketAddr, to: SocketAddr) -> Result<Client> {
        let socket =
            ns.run(|| UdpSocket::bind(from).with_context(|| format!("cannot bind to {from}")))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Client { socket, to })
    }

    fn send(&self) -> Result<()> {
        self.socket.send_to(b"hello", self.to)?;
        Ok(())
    }

    fn server(&self) -> Result<String> {
        self.send()?;
        let mut buffer = [0; 256];
        let (length, _) = self
            .socket
            .recv_from(&mut buffer)
            .with_context(|| format!("no answer: {}", self.to))?;
        let answer = String::from_utf8_lossy(&buffer[..length]);
        Ok(answer.split(' ').next().unwrap_or_default().to_owned())
    }
}

#[test]
fn exactly_the_stale_flows_of_the_swept_frontends_vanish() -> Result<()> {
    let lab = Topology::new()?;
    let _servers = [Echo::on(&lab.pod1, 8080)?, Echo::on(&lab.pod2, 8080)?];
    // The ports that the kernel gives to clients are none of those above.
    lab.client.sysctl(&[("net/ipv4/ip_local_port_range", "50000 60999")])?;
    for names in &NAMES {
        lab.node.nft(&names.rules())?;
    }
    // A handshake that does not go on is forgotten after three seconds; this test may take longer.
    lab.node.sysctl(&[("net/netfilter/nf_conntrack_sctp_timeout_cookie_wait", "300")])?;
    let mut stale: BTreeMap<Family, BTreeSet<Flow>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    let mut connections = Vec::new();
    for names in &NAMES {
        let stale = stale.entry(names.family).or_default();
        for frontend in names.swept.iter().chain([&names.other]).map(|text| socket(text)) {
            for (port, server) in [(TO_POD1 + 1, "pod-1"), (TO_POD2 + 1, "pod-2")] {
                let flow = Flow::udp(names.client(port), frontend);
                assert_eq!(Client::new(&lab.client, flow.from, flow.to)?.server()?, server);
                all.insert(flow.clone());
                if server == "pod-2" && frontend != socket(names.other) {
                    stale.insert(flow);
                }
            }
            for protocol in ["tcp", "sctp"] {
                // Both are sent to the second pod.
                if protocol == "tcp" {
                    connections.push(lab.from(&lab.client).connect(frontend)?);
                } else {
                    let patience = Duration::from_secs(5);
                    lab.client
                        .run(|| probe(shunt_testbed::Protocol::Sctp, None, frontend, patience))?;
                }
            }
        }
        let before_the_service = Flow::udp(names.client(43_000), socket(names.untranslated));
        let zoned = Flow::udp(names.client(ZONED), socket(names.swept[0]));
        for flow in [&before_the_service, &zoned] {
            Client::new(&lab.client, flow.from, flow.to)?.send()?;
            all.insert(flow.clone());
        }
        stale.insert(before_the_service);
        let direct = Flow::udp(SocketAddr::new(names.node.parse()?, 43_001), socket(names.pods[1]));
        assert_eq!(Client::new(&lab.node, direct.from, direct.to)?.server()?, "pod-2");
        all.insert(direct);
    }
    let mut before = flows_with(&lab.node, &all)?;
    let count = |protocol| before.iter().filter(|flow| flow.protocol == protocol).count();
    assert_eq!((count("tcp"), count("sctp")), (10, 10), "{before:#?}");

    for names in &NAMES {
        let mut conntrack = lab.node.run(|| Ok(Conntrack::open()?))?;
        let permitted = conntrack.sweep(names.family, &names.sweep(), &mut |_| true)?;
        assert_eq!(permitted.deleted, 0, "later commits allow all of them");
        let report = sweep(&lab.node, names.family, &names.sweep())?;
        let after = flows(&lab.node)?;
        let vanished: BTreeSet<Flow> = before.difference(&after).cloned().collect();
        assert_eq!(vanished, stale[&names.family]);
        assert_eq!((report.family, report.deleted), (names.family, vanished.len()));
        let again = sweep(&lab.node, names.family, &names.sweep())?;
        assert_eq!(again.deleted, 0);
        before = after;
    }
    connections.iter_mut().try_for_each(|connection: &mut Connection| {
        assert_eq!(connection.echo("still there?")?, "still there?");
        Ok(())
    })
}

#[test]
fn a_client_that_keeps_sending_reaches_an_endpoint_again() -> Result<()> {
    let lab = Topology::new()?;
    let _servers = [Echo::on(&lab.pod1, 8080)?, Echo::on(&lab.pod2, 8080)?];
    let (report, reports) = mpsc::channel();
    let mut worker = lab.node.run(|| {
        Ok(spawn(Conntrack::open()?, move |made| {
            let _ = report.send(made);
        })?)
    })?;
    for names in &NAMES {
        let family = if names.family == Family::V4 { "ip" } else { "ip6" };
        lab.node.nft(&names.rules())?;
        let clients: Vec<Client> = names
            .swept
            .iter()
            .zip(TO_POD2..)
            .map(|(text, port)| Client::new(&lab.client, names.client(port), socket(text)))
            .collect::<Result<_>>()?;
        for client in &clients {
            assert_eq!(client.server()?, "pod-2");
        }
        let others = names.rules().replace(names.pods[1], names.pods[0]);
        lab.node.nft(&format!("flush table {family} hand\n{others}"))?;
        for client in &clients {
            assert_eq!(client.server()?, "pod-2", "new rules alone do not move a flow");
        }
        worker.committed(names.sweep());
        let report = reports.recv_timeout(Duration::from_secs(10))?;
        assert_eq!((report.family, report.deleted), (names.family, clients.len()));
        for client in &clients {
            assert_eq!(client.server()?, "pod-1");
        }
    }
    Ok(())
}
