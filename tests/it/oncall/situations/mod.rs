//! Broken and odd situations that scenario files cannot make (`tests/scenarios/explain.yaml` has the
//! others). Each is made in the testbed, and a real packet shows what is right:
//! `shunt explain` has to give that verdict, with the right codes.
//!
//! A [`Row`] is one situation. [`check`] asks `shunt explain` in the network namespace of the agent
//! before the first packet, then sends packets from the same source, and compares more than the row
//! says: the servers that answer with the endpoints in use, and their view of the source with
//! masquerading.

mod agent;
mod frontends;
mod others;
mod routes;
mod settings;
mod tables;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_testbed::{Host, Outcome, Protocol, Tally, patience};

use crate::table::{self, Family, Frontend};
use crate::world::{SHUNT, World};

/// The timeout for an ICMP error: a neighbour that does not answer costs three seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The timeout for one of many connections that may be lost.
const SILENCE: Duration = Duration::from_millis(50);

/// The verdict of `shunt explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    Delivered,
    Refused,
    Dropped,
    NotAService,
    Unknown,
}

impl Says {
    /// The word in JSON, and the exit status.
    fn contract(self) -> (&'static str, i32) {
        match self {
            Says::Delivered => ("delivered", 0),
            Says::Refused => ("refused", 3),
            Says::Dropped => ("dropped", 3),
            Says::NotAService => ("not-a-service", 4),
            Says::Unknown => ("unknown", 1),
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// Exactly these servers answer.
    Answered(&'static [&'static str]),
    /// Exactly these servers answer, but not to all connections.
    Some(&'static [&'static str]),
    /// The client gets a reset or an ICMP error at once.
    Refused,
    /// The client gets no answer.
    Silent,
    /// It leaves the node as it came: the gateway prohibits it.
    Untouched,
    /// The client gets an ICMP error of routing.
    Unreachable,
}

/// The source of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Client,
    Node,
    /// A pod on the node.
    Pod1,
}

impl From {
    fn host(self, world: &World) -> &Host {
        match self {
            From::Client => &world.lab.client,
            From::Node => &world.lab.node,
            From::Pod1 => &world.lab.pod1,
        }
    }
}

/// A frontend of the Service of this number (see [`table::service_of`]), in both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct To(Frontend, u8);

impl To {
    pub(super) const fn cluster_ip(number: u8) -> To {
        To(Frontend::ClusterIp, number)
    }

    pub(super) const fn external_ip(number: u8) -> To {
        To(Frontend::ExternalIp, number)
    }

    pub(super) const fn vip(number: u8) -> To {
        To(Frontend::LoadBalancer, number)
    }

    pub(super) fn address(self, family: Family) -> SocketAddr {
        let To(frontend, number) = self;
        table::Case { frontend, family, protocol: Protocol::Tcp }.address_of(number)
    }
}

/// A situation, with what is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// What is broken or odd.
    pub(super) situation: &'static str,
    pub(super) from: From,
    pub(super) to: To,
    pub(super) families: &'static [Family],
    pub(super) over: &'static [Protocol],
    pub(super) says: Says,
    /// The codes of all findings.
    pub(super) codes: &'static [&'static str],
    /// Why the connection is masqueraded; empty if it is not.
    pub(super) masquerade: &'static str,
    pub(super) packet: Packet,
}

pub(super) const V4: &[Family] = &[Family::V4];
pub(super) const V6: &[Family] = &[Family::V6];
pub(super) const TCP: &[Protocol] = &[Protocol::Tcp];
pub(super) const UDP: &[Protocol] = &[Protocol::Udp];

/// From the client, over TCP and UDP, in both families. A row without its own outcome asserts that
/// no row has it.
pub(super) const ROW: Row = Row {
    situation: "",
    from: From::Client,
    to: To::cluster_ip(0),
    families: &Family::ALL,
    over: &[Protocol::Tcp, Protocol::Udp],
    says: Says::Delivered,
    codes: &[],
    masquerade: "",
    packet: Packet::Untouched,
};

/// One packet of a row.
#[derive(Clone, Copy)]
struct Cell<'a> {
    row: &'a Row,
    family: Family,
    protocol: Protocol,
}

impl Display for Cell<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { row: Row { situation, from, to, .. }, family, protocol } = self;
        write!(f, "{situation}: {from:?} to {to:?}, {family:?} {protocol}")
    }
}

/// Checks all rows, so that a failure shows which others fail with it.
pub(super) fn check(world: &World, rows: &[Row]) -> Result<()> {
    let mut cells = Vec::new();
    for row in rows {
        for &family in row.families {
            let cell = |&protocol: &Protocol| Cell { row, family, protocol };
            cells.extend(row.over.iter().map(cell));
        }
    }
    // Three of the four combinations of a row have each family and each protocol.
    let has_all = |row: &Row| row.families.len() * row.over.len() == 4;
    cells.retain(|cell| !(has_all(cell.row) && cell.is(Family::V6, Protocol::Udp)));
    ensure!(!cells.is_empty(), "a table without rows");
    // Most of the time of a silence is waiting.
    let (silent, others): (Vec<_>, Vec<_>) =
        cells.into_iter().partition(|cell| cell.row.packet == Packet::Silent);
    let failed: String = thread::scope(|scope| {
        let failure = |cell: &Cell<'_>| table::failure(cell, || cell.check(world));
        let threads: Vec<_> =
            silent.iter().map(|cell| scope.spawn(move || failure(cell))).collect();
        let failed: Vec<String> = others.iter().filter_map(failure).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        failed.into_iter().chain(threads.into_iter().filter_map(join)).collect()
    });
    ensure!(failed.is_empty(), "rows of the table that do not hold:\n{failed}");
    Ok(())
}

impl Cell<'_> {
    fn is(&self, family: Family, protocol: Protocol) -> bool {
        self.family == family && self.protocol == protocol
    }

    fn check(&self, world: &World) -> Result<()> {
        let explanation = self.explained(world)?;
        let to = self.row.to.address(self.family);
        let host = self.row.from.host(world);
        let probe = world.lab.from(host).probe(self.protocol, to);
        match self.row.packet {
            Packet::Answered(servers) => {
                let reached = probe.reaches(servers);
                // A port of the node that is none of a Service's has no endpoints.
                if self.row.says == Says::Delivered {
                    self.compare(world, &explanation, reached.tally())?;
                    // The connections that exist now change nothing.
                    if self.is(Family::V6, Protocol::Tcp) {
                        self.explained(world)?;
                    }
                }
            }
            Packet::Some(servers) => {
                let tally = probe.tally(40 * servers.len(), SILENCE)?;
                ensure!(tally.lost() > 0, "no connection is lost: {tally}");
                ensure!(tally.by_server().into_keys().eq(servers.iter().copied()), "{tally}");
                self.compare(world, &explanation, &tally)?;
            }
            Packet::Refused => probe.refused(),
            Packet::Silent => probe.times(2).dropped(),
            Packet::Untouched => probe.unhandled(),
            Packet::Unreachable => {
                let tally = probe.tally(1, PATIENCE)?;
                let is_error =
                    |(outcome, _): &(Outcome, usize)| matches!(outcome, Outcome::Unreachable(_));
                ensure!(tally.counts.iter().all(is_error), "no ICMP error: {tally}");
            }
        }
        Ok(())
    }

    /// Asks `shunt explain`, and compares the answer with the row.
    fn explained(&self, world: &World) -> Result<Value> {
        let to = format!("{}/{}", self.row.to.address(self.family), self.protocol);
        let host = self.row.from.host(world);
        let address = table::addresses(host, self.family)[0].to_string();
        let by_address = match self.row.from {
            From::Node => explain(world, &["--to", &to])?,
            _ => explain(world, &["--to", &to, "--from", &address])?,
        };
        self.compare_with_row(&by_address)?;
        let is_pod = self.row.from == From::Pod1;
        if is_pod && self.is(Family::V4, Protocol::Tcp) {
            let namespace = host.path().display().to_string();
            let by_namespace = explain(world, &["--to", &to, "--netns", &namespace])?;
            self.compare_with_row(&by_namespace).context("with --netns")?;
        }
        Ok(by_address.json)
    }

    fn compare_with_row(&self, answer: &Answer) -> Result<()> {
        let Row { says, codes, masquerade, .. } = *self.row;
        let (word, status) = says.contract();
        let json = &answer.json;
        ensure!(json["verdict"] == word, "the verdict is not {word}: {json:#}");
        ensure!(answer.status == status, "exit status {}, not {status}", answer.status);
        let expected: BTreeSet<&str> = codes.iter().copied().collect();
        let found = answer.codes();
        ensure!(found == expected, "the codes are {found:?}, not {expected:?}: {json:#}");
        let reason = json["masquerade"]["reason"].as_str().unwrap_or_default();
        ensure!(reason == masquerade, "masquerade {reason:?}, not {masquerade:?}: {json:#}");
        Ok(())
    }

    /// Compares the explanation of a delivery with what the servers saw.
    fn compare(&self, world: &World, json: &Value, tally: &Tally) -> Result<()> {
        let hosts = hosts(world);
        let name = |address: &Value| {
            let address: Option<IpAddr> = address.as_str().and_then(|it| it.parse().ok());
            let owner = hosts.iter().find(|host| host.ips().any(|ip| Some(ip) == address));
            owner.map_or("nobody", |host| &host.name)
        };
        let endpoints = json["endpoints"].as_array().context("no endpoints")?;
        let used: BTreeSet<&str> = endpoints
            .iter()
            .filter(|endpoint| endpoint["used"] == true && endpoint["obstacle"].is_null())
            .map(|endpoint| name(&endpoint["address"]))
            .collect();
        let answered: BTreeSet<&str> = tally.by_server().into_keys().collect();
        ensure!(used == answered, "{answered:?} answered: {json:#}");
        let own: Vec<IpAddr> = self.row.from.host(world).ips().collect();
        let is_changed = |outcome: &Outcome| matches!(outcome, Outcome::Reached { source, .. } if !own.contains(source));
        let masqueraded = tally.counts.iter().any(|(outcome, _)| is_changed(outcome));
        // The node masquerades its own packets to an address that they have already.
        let applies = json["masquerade"]["applies"] == true;
        ensure!(
            applies == masqueraded || self.row.from == From::Node,
            "masquerading applies: {applies}, and it was seen: {masqueraded}: {json:#}"
        );
        Ok(())
    }
}

fn hosts(world: &World) -> [&Host; 6] {
    let lab = &world.lab;
    [&lab.node, &lab.node2, &lab.client, &lab.pod1, &lab.pod2, &lab.pod3]
}

/// The answer of `shunt explain`.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) json: Value,
    pub(super) status: i32,
}

impl Answer {
    /// The codes of all findings, also those of the frontends of a Service.
    pub(super) fn codes(&self) -> BTreeSet<&str> {
        let of = |json: &'_ Value| json["findings"].as_array().cloned().unwrap_or_default().len();
        let frontends = self.json["frontends"].as_array().into_iter().flatten();
        let all = std::iter::once(&self.json).chain(frontends).filter(|json| of(json) > 0);
        all.flat_map(|json| json["findings"].as_array().into_iter().flatten())
            .filter_map(|finding| finding["code"].as_str())
            .collect()
    }
}

/// Runs `shunt explain` in the network namespace of the agent.
pub(super) fn explain(world: &World, arguments: &[&str]) -> Result<Answer> {
    let mut command = world.lab.node.command(SHUNT);
    let output = command.arg("explain").args(arguments).arg("--output=json").output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let json = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("explain {arguments:?}: {errors}"))?;
    Ok(Answer { json, status: output.status.code().context("ended by a signal")? })
}

/// Asks until the answer is as `is_so` wants it: for what follows a change.
pub(super) fn wait_for(
    world: &World,
    arguments: &[&str],
    is_so: impl Fn(&Answer) -> bool,
) -> Result<Answer> {
    let start = Instant::now();
    loop {
        let answer = explain(world, arguments);
        match answer {
            Ok(answer) if is_so(&answer) => return Ok(answer),
            answer => {
                let late = start.elapsed() > patience(Duration::from_secs(20));
                ensure!(!late, "explain {arguments:?} still says {answer:#?}");
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}
