//! Tables of expectations: targets, frontends and senders, and what becomes of the packets between them.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use shunt_testbed::{Host, Protocol, Topology, patience};

use crate::explain::{Explanation, compare};
use crate::language::{Expected, Selection, Source};

/// How long the first answer of a session may take.
const ANSWER: Duration = Duration::from_secs(5);

/// How long an ICMP error may take: a neighbour that does not answer costs three seconds.
const NEIGHBOUR: Duration = Duration::from_secs(20);

/// Whom each sender reached at the last step at which it had to stick.
pub(crate) type Sessions = Mutex<BTreeMap<(String, Option<IpAddr>, Protocol, SocketAddr), String>>;

/// One line of a table in full.
pub(crate) struct Cell<'a> {
    pub(crate) from: &'a Host,
    /// The address that it sends from, as in `node@192.0.2.11`.
    pub(crate) source: Option<IpAddr>,
    pub(crate) protocol: Protocol,
    pub(crate) to: SocketAddr,
    pub(crate) expected: Expected,
    /// What `shunt explain` must say of it first.
    pub(crate) explanation: Option<Explanation>,
}

/// Where the words of a target lead.
pub(crate) trait Targets {
    /// The frontends of a Service or number; an error if the target is neither.
    fn frontends(&self, target: &str, selection: &Selection)
    -> Result<Vec<(Protocol, SocketAddr)>>;
    fn host(&self, name: &str) -> Result<&Host>;
}

/// Returns the cells of `table`: target → selection → senders → outcome. The selection, and the senders
/// (then the client), may be left out. A target is the name of a Service, `number 12`, or addresses and
/// ports.
pub(crate) fn cells<'a>(
    targets: &'a impl Targets,
    table: &Value,
    explain: bool,
) -> Result<Vec<Cell<'a>>> {
    let mut cells = Vec::new();
    for (target, lines) in table.as_object().context("a table is a map of targets")? {
        let words: Vec<&str> = target.split_whitespace().collect();
        let addresses = words.iter().any(|word| word.contains(':'));
        if addresses {
            let (to, rest): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.contains(':'));
            let selection = Selection::parse(rest)?;
            let mut all = Vec::new();
            for to in to {
                let to: SocketAddr =
                    to.parse().with_context(|| format!("{to:?} is no address and port"))?;
                all.extend(selection.protocols.iter().map(|protocol| (*protocol, to)));
            }
            add(targets, &all, lines, explain, &mut cells).with_context(|| target.clone())?;
            continue;
        }
        let mut select = |words: &str, lines: &Value| -> Result<()> {
            let selection = Selection::parse(words.split_whitespace())?;
            let to = targets.frontends(target, &selection)?;
            ensure!(!to.is_empty(), "{target} has no frontend {words}");
            add(targets, &to, lines, explain, &mut cells)
        };
        match lines.as_object() {
            Some(selections) => selections
                .iter()
                .try_for_each(|(words, lines)| select(words, lines))
                .with_context(|| target.clone())?,
            None => select("all", lines).with_context(|| target.clone())?,
        }
    }
    ensure!(!cells.is_empty(), "a table that expects nothing");
    Ok(cells)
}

fn add<'a>(
    targets: &'a impl Targets,
    to: &[(Protocol, SocketAddr)],
    lines: &Value,
    explain: bool,
    cells: &mut Vec<Cell<'a>>,
) -> Result<()> {
    let mut line = |senders: &str, outcome: &Value| -> Result<()> {
        let outcome = outcome.as_str().with_context(|| format!("{outcome} is no outcome"))?;
        for sender in senders.split_whitespace() {
            let (name, source) = sender.split_once('@').unwrap_or((sender, ""));
            let from = targets.host(name)?;
            let source = match source {
                "" => None,
                source => {
                    Some(source.parse().with_context(|| format!("{source:?} is no address"))?)
                }
            };
            for &(protocol, to) in to {
                let (explanation, expected) = if explain {
                    let is_host = |word: &str| targets.host(word).is_ok();
                    let (explanation, expected) = Explanation::parse(outcome, is_host)?;
                    (Some(explanation), expected)
                } else {
                    (None, Expected::parse(outcome)?)
                };
                cells.push(Cell { from, source, protocol, to, expected, explanation });
            }
        }
        Ok(())
    };
    match lines.as_object() {
        Some(lines) => lines.iter().try_for_each(|(senders, outcome)| line(senders, outcome)),
        None => line("client", lines),
    }
}

/// Sends the packets of all cells, so that a failure shows which others fail with it.
pub(crate) fn check(
    lab: &Topology,
    sessions: &Sessions,
    cells: &[Cell<'_>],
    eventually: bool,
) -> Result<()> {
    let (silent, others): (Vec<_>, Vec<_>) =
        cells.iter().partition(|cell| cell.expected == Expected::Dropped);
    let failure = |cell: &Cell<'_>| {
        let result = catch_unwind(AssertUnwindSafe(|| cell.check(lab, sessions, eventually)));
        match result {
            Ok(result) => result.err().map(|error| format!("{error:#}")),
            Err(panic) => Some(text(&*panic)),
        }
    };
    // Silence takes its time, and as long for many as for one.
    let silent: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = silent.iter().map(|cell| scope.spawn(|| failure(cell))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    let failed: Vec<String> = others.into_iter().filter_map(failure).chain(silent).collect();
    // The first in full, with rules and flows; of the others what was seen.
    let seen = failed.iter().enumerate().map(|(index, text)| match index {
        0 => text.clone(),
        _ => text.lines().take(3).collect::<Vec<_>>().join("\n"),
    });
    ensure!(
        failed.is_empty(),
        "{} of {} do not hold:\n{}",
        failed.len(),
        cells.len(),
        seen.collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

impl Cell<'_> {
    /// Fails or panics if something else becomes of the packets.
    fn check(&self, lab: &Topology, sessions: &Sessions, eventually: bool) -> Result<()> {
        let explained = self.explained(lab)?;
        let mut probe = lab.from(self.from).probe(self.protocol, self.to);
        // A masquerade shows at an address that the node would not choose itself.
        let secondary: Option<IpAddr> = (self.from.name == lab.node.name
            && !self.to.ip().is_loopback())
        .then(|| lab.node.ips().filter(|ip| ip.is_ipv4() == self.to.is_ipv4()).nth(1))
        .flatten();
        let chosen = self.source.or(secondary);
        if let Some(chosen) = chosen {
            probe = probe.source(chosen);
        }
        if eventually {
            probe = probe.eventually();
        }
        match &self.expected {
            Expected::Reach(servers, source) => {
                let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
                let reached = probe.reaches(&servers);
                // What is not a Service's has no endpoints.
                if let Some(json) = explained.filter(|json| json["verdict"] == "delivered") {
                    compare(lab, self.from, self.source, &json, reached.tally())?;
                    // The connections that exist now change nothing.
                    self.explained(lab)?;
                }
                let has = |host: &Host, ip: IpAddr| host.ips().any(|own| own == ip);
                let kept = |ip| chosen.map_or_else(|| has(self.from, ip), |chosen| chosen == ip);
                let is_hidden =
                    |ip| has(&lab.node, ip) && (self.source.is_some() || Some(ip) != secondary);
                // What a pod sends to itself needs the masquerade.
                let to_itself = |server: &str| server == self.from.name && server != lab.node.name;
                drop(reached.sources(&format!("{source:?}"), |server, ip| match source {
                    Source::Any => true,
                    Source::Preserved if to_itself(server) => has(&lab.node, ip),
                    Source::Preserved => kept(ip),
                    Source::Masqueraded => is_hidden(ip),
                }));
            }
            Expected::Stick(servers) => {
                let first = probe.tally(1, patience(ANSWER))?;
                let server = first.by_server().into_keys().next().map(str::to_owned);
                let allowed = server.filter(|server| servers.contains(server));
                let server = allowed.with_context(|| format!("{probe}: {first}"))?;
                let cell = (self.from.name.clone(), self.source, self.protocol, self.to);
                let mut sessions = sessions.lock().map_err(|_| anyhow!("poisoned"))?;
                let before = sessions.insert(cell, server.clone());
                let moved = |before: &String| *before != server && servers.contains(before);
                if let Some(before) = before.filter(moved) {
                    bail!("{probe}: {before} before, {server} now");
                }
                drop(sessions);
                drop(probe.reaches(&[&server]));
            }
            Expected::Share(shares) => {
                const CONNECTIONS: usize = 3_000;
                let tally = probe.tally(CONNECTIONS, patience(ANSWER))?;
                let all: u32 = shares.iter().map(|(_, share)| share).sum();
                for (server, share) in shares {
                    let (total, chance) = (CONNECTIONS as f64, f64::from(*share) / f64::from(all));
                    // Five standard deviations: less than one honest sample in a million.
                    let most = 5.0 * (total * chance * (1.0 - chance)).sqrt();
                    let off = tally.reached(server) as f64 - total * chance;
                    ensure!(off.abs() <= most, "{probe}: {server} by {off}: {tally}");
                }
            }
            Expected::Refused => probe.refused(),
            Expected::Dropped => probe.times(2).dropped(),
            Expected::Unhandled => probe.unhandled(),
            Expected::Unreachable => {
                let tally = probe.tally(1, patience(NEIGHBOUR))?;
                ensure!(
                    tally.counts.iter().all(|(it, _)| it.error().is_some()),
                    "{probe}: {tally}"
                );
            }
        }
        Ok(())
    }

    fn explained(&self, lab: &Topology) -> Result<Option<Value>> {
        let ask = |it: &Explanation| it.ask(lab, self.from, self.source, self.protocol, self.to);
        self.explanation.as_ref().map(ask).transpose()
    }
}
