//! Expectations about packets, written as one sentence, that explain themselves when they fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;

use crate::flow::{Flow, Question, probe, volley};
use crate::patience::patience;
use crate::probe::{Outcome, Protocol};
use crate::topology::{Host, Topology};

/// How long a probe waits for an answer that should come.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a probe waits for an answer that should not come.
const SILENCE: Duration = Duration::from_millis(300);
/// How long [`Probe::eventually`] goes on trying.
const CONVERGENCE: Duration = Duration::from_secs(30);
/// Lines of rules or connections that a failure quotes.
const QUOTED: usize = 300;

/// What a probe waits for.
#[derive(Clone, Copy)]
enum Awaited {
    Answer,
    Silence,
}

/// Where packets start; from [`Topology::from`].
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    lab: &'a Topology,
    host: &'a Host,
}

impl<'a> Origin<'a> {
    pub(crate) fn new(lab: &'a Topology, host: &'a Host) -> Self {
        Self { lab, host }
    }

    /// TCP connections to `to`, an address and port such as `10.96.0.10:80` or `[fd00:96::10]:80`.
    #[track_caller]
    pub fn tcp(self, to: impl Display) -> Probe<'a> {
        self.probe(Protocol::Tcp, to)
    }

    /// UDP questions to `to`.
    #[track_caller]
    pub fn udp(self, to: impl Display) -> Probe<'a> {
        self.probe(Protocol::Udp, to)
    }

    /// Probes of any protocol to `to`.
    #[track_caller]
    pub fn probe(self, protocol: Protocol, to: impl Display) -> Probe<'a> {
        let to = address(to);
        Probe { origin: self, protocol, to, source: None, times: None, deadline: None }
    }

    /// Opens a TCP connection that stays open.
    pub fn connect(self, to: impl Display) -> Result<Flow> {
        let to = address(to);
        self.host.run(|| Flow::connect(to, patience(CONVERGENCE)))
    }
}

/// A number of equal probes, and what should become of them. The methods that say the latter
/// send them, and panic with everything there is to know when it comes out otherwise.
#[must_use = "nothing is sent until an outcome is expected"]
#[derive(Clone)]
pub struct Probe<'a> {
    origin: Origin<'a>,
    protocol: Protocol,
    to: SocketAddr,
    source: Option<IpAddr>,
    times: Option<usize>,
    deadline: Option<Duration>,
}

impl<'a> Probe<'a> {
    /// How many probes to send. Without it there are enough that a uniform choice meets one server too
    /// many in all but one of ten thousand runs, and that it misses none of the expected ones in a billion.
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    /// Sends from this address of the host instead of the one that routing selects.
    pub fn source(mut self, source: impl Into<IpAddr>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Tries again for some seconds until it comes out as expected: for what follows a change.
    pub fn eventually(self) -> Self {
        self.within(patience(CONVERGENCE))
    }

    /// Like [`Probe::eventually`], with a deadline of its own.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Every probe reaches a server, and the servers reached are exactly these.
    #[track_caller]
    pub fn reaches(self, servers: &[&str]) -> Reached<'a> {
        let expected: BTreeSet<&str> = servers.iter().copied().collect();
        let names: Vec<&str> = expected.iter().copied().collect();
        if expected.is_empty() {
            fail(&format!("{self}: no server is expected; use refused, dropped or unhandled"));
        }
        let goal = format!("exactly these reached: {}", names.join(", "));
        let least = self.times.unwrap_or(8 * (expected.len() + 1));
        let most = self.times.unwrap_or(25 * expected.len());
        let tally = self.expect(&goal, [least, most], Awaited::Answer, |tally| {
            tally.servers().is_some_and(|servers| servers == expected)
        });
        Reached { probe: self, tally }
    }

    /// Every probe is refused at once.
    #[track_caller]
    pub fn refused(self) {
        self.expect_only("all refused", Awaited::Answer, Outcome::is_refused);
    }

    /// No probe is answered in any way.
    #[track_caller]
    pub fn dropped(self) {
        self.expect_only("no answer to any", Awaited::Silence, |outcome| {
            *outcome == Outcome::Dropped
        });
    }

    /// Every probe leaves the node as it came, touched by no rule: the gateway prohibits it.
    #[track_caller]
    pub fn unhandled(self) {
        let goal = "all past the rules, to the gateway";
        self.expect_only(goal, Awaited::Answer, |outcome| {
            matches!(outcome.error(), Some(Errno::EHOSTUNREACH | Errno::EACCES))
        });
    }

    /// Sends the probes, one after the other, and counts what becomes of them, without any
    /// expectation. No answer within `patience` counts as dropped.
    pub fn tally(&self, times: usize, patience: Duration) -> Result<Tally> {
        self.one_by_one(times, patience, |_, _| false)
    }

    #[track_caller]
    fn expect_only(self, goal: &str, awaited: Awaited, good: fn(&Outcome) -> bool) {
        let times = self.times.unwrap_or(4);
        self.expect(goal, [times; 2], awaited, |tally| {
            tally.counts.iter().all(|(outcome, _)| good(outcome))
        });
    }

    /// Sends the least number of probes, at most the most, until `good` is content with the outcomes or the
    /// deadline is over.
    #[track_caller]
    fn expect(
        &self,
        goal: &str,
        [least, most]: [usize; 2],
        awaited: Awaited,
        good: impl Fn(&Tally) -> bool + Sync,
    ) -> Tally {
        let start = Instant::now();
        let longest = patience(PATIENCE);
        // What is tried again need not wait for long for the answer to a packet that came too early.
        let mut wait = if self.deadline.is_some() { SILENCE } else { longest };
        loop {
            let tally = match awaited {
                Awaited::Silence => self.all_at_once(most, SILENCE),
                // One silence is enough to fail, and would take long to repeat.
                Awaited::Answer => self.one_by_one(most, wait, |tally, last| {
                    *last == Outcome::Dropped || (tally.total() >= least && good(tally))
                }),
            };
            wait = (2 * wait).min(longest);
            let tally = match tally {
                Ok(tally) => tally,
                Err(error) => fail(&format!("{self}: cannot probe: {error:#}")),
            };
            if tally.total() > 0 && good(&tally) {
                return tally;
            }
            if self.deadline.is_none_or(|deadline| start.elapsed() > deadline) {
                let after = match self.deadline {
                    Some(_) => format!(" (after {:.1?} of trying)", start.elapsed()),
                    None => String::new(),
                };
                self.fail(goal, &format!("{tally}{after}"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// One probe after the other, so that raw sockets do not hear answers to others, until all of them or
    /// the last one are `enough`.
    fn one_by_one(
        &self,
        times: usize,
        patience: Duration,
        enough: impl Fn(&Tally, &Outcome) -> bool + Sync,
    ) -> Result<Tally> {
        self.origin.host.run(|| {
            let mut tally = Tally::default();
            for _ in 0..times {
                let outcome = probe(self.protocol, self.source, self.to, patience)?;
                tally.add(outcome.clone());
                if enough(&tally, &outcome) {
                    break;
                }
            }
            Ok(tally)
        })
    }

    /// All probes at the same time: silence takes as long for many as for one.
    fn all_at_once(&self, times: usize, patience: Duration) -> Result<Tally> {
        let Self { protocol, source, to, .. } = *self;
        let questions = vec![Question { protocol, source, to }; times];
        let outcomes = self.origin.host.run(|| volley(&questions, patience))?;
        let mut tally = Tally::default();
        outcomes.into_iter().for_each(|outcome| tally.add(outcome));
        Ok(tally)
    }

    #[track_caller]
    fn fail(&self, goal: &str, got: &str) -> ! {
        let node = &self.origin.lab.node;
        let mut message = format!("{self}\n  expected: {goal}\n  got:      {got}\n");
        for (title, program, args) in [
            ("rules", "nft", &["list", "ruleset"][..]),
            ("connections", "conntrack", &["-L"]),
            ("IPv6 connections", "conntrack", &["-L", "-f", "ipv6"]),
        ] {
            let text = node.output(program, args).unwrap_or_else(|error| format!("{error:#}"));
            let text = if program == "conntrack" { self.about(&text) } else { text };
            let _ = writeln!(message, "── {title} of {node} ──\n{}", quote(&text));
        }
        fail(&message)
    }

    /// The connections to the address in question.
    fn about(&self, connections: &str) -> String {
        let destination = format!("dst={} ", self.to.ip());
        let lines: Vec<_> =
            connections.lines().filter(|line| line.contains(&destination)).collect();
        lines.join("\n")
    }
}

impl Display for Probe<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "from {} to {}/{}", self.origin.host, self.to, self.protocol)?;
        self.source.map_or(Ok(()), |source| write!(f, ", source address {source}"))
    }
}

/// How often each outcome came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Outcomes that came at least once, in the order of their first coming.
    pub counts: Vec<(Outcome, usize)>,
}

impl Tally {
    /// Counts one more.
    pub fn add(&mut self, outcome: Outcome) {
        match self.counts.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((outcome, 1)),
        }
    }

    /// The number of probes.
    pub fn total(&self) -> usize {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// The number of probes that reached a server of this name.
    pub fn reached(&self, name: &str) -> usize {
        let hits = self.counts.iter().filter(
            |(outcome, _)| matches!(outcome, Outcome::Reached { server, .. } if server == name),
        );
        hits.map(|(_, count)| count).sum()
    }

    /// The number of probes that each server answered, by its name.
    pub fn by_server(&self) -> BTreeMap<&str, usize> {
        let mut by_server = BTreeMap::new();
        for (outcome, count) in &self.counts {
            if let Outcome::Reached { server, .. } = outcome {
                *by_server.entry(server.as_str()).or_default() += count;
            }
        }
        by_server
    }

    /// The outcomes of probes that no server answered.
    pub fn failures(&self) -> impl Iterator<Item = (&Outcome, usize)> {
        let failed = |outcome: &Outcome| !matches!(outcome, Outcome::Reached { .. });
        self.counts.iter().filter(move |(o, _)| failed(o)).map(|(o, count)| (o, *count))
    }

    /// The number of probes that no server answered.
    pub fn lost(&self) -> usize {
        self.failures().map(|(_, count)| count).sum()
    }

    /// Whether exactly these servers answered, each about as often as the others, and nothing was lost.
    ///
    /// The agent promises each endpoint the same chance, so counts spread binomially. Seven
    /// standard deviations let one honest run in hundreds of billions fail.
    pub fn is_even_among(&self, servers: &[&str]) -> bool {
        let by_server = self.by_server();
        let expected: BTreeSet<&str> = servers.iter().copied().collect();
        if self.lost() > 0 || !by_server.keys().copied().eq(expected) {
            return false;
        }
        let (total, chance) = (self.total() as f64, 1.0 / servers.len() as f64);
        let deviation = (total * chance * (1.0 - chance)).sqrt();
        by_server.values().all(|count| (*count as f64 - total * chance).abs() <= 7.0 * deviation)
    }

    /// The servers reached, if every probe reached one.
    pub fn servers(&self) -> Option<BTreeSet<&str>> {
        self.counts
            .iter()
            .map(|(outcome, _)| match outcome {
                Outcome::Reached { server, .. } => Some(server.as_str()),
                _ => None,
            })
            .collect()
    }

    /// The source addresses that servers saw.
    pub fn sources(&self) -> BTreeSet<IpAddr> {
        let sources = self.counts.iter().filter_map(|(outcome, _)| match outcome {
            Outcome::Reached { source, .. } => Some(*source),
            _ => None,
        });
        sources.collect()
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        for (outcome, count) in &self.counts {
            write!(f, "{separator}{count} × {outcome}")?;
            separator = "\n            ";
        }
        Ok(())
    }
}

/// Probes that all reached a server; more can be expected of them.
pub struct Reached<'a> {
    probe: Probe<'a>,
    tally: Tally,
}

impl Reached<'_> {
    /// How often each outcome came.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The servers saw an address of the host that asked.
    #[track_caller]
    pub fn source_preserved(self) -> Self {
        let Origin { host, .. } = self.probe.origin;
        let own = self.probe.source;
        let is_own =
            |ip: IpAddr| own.map_or_else(|| host.ips().any(|it| it == ip), |own| own == ip);
        self.sources("source preserved", |_, ip| is_own(ip))
    }

    /// The servers saw an address of the node under test.
    #[track_caller]
    pub fn source_masqueraded(self) -> Self {
        let lab = self.probe.origin.lab;
        self.source_of(&lab.node)
    }

    /// The servers saw an address of this host.
    #[track_caller]
    pub fn source_of(self, host: &Host) -> Self {
        self.sources(&format!("source of {host}"), |_, ip| host.ips().any(|it| it == ip))
    }

    /// Each server saw a source address that is right for it.
    #[track_caller]
    pub fn sources(self, goal: &str, is_right: impl Fn(&str, IpAddr) -> bool) -> Self {
        let wrong = |outcome: &Outcome| match outcome {
            Outcome::Reached { server, source } => !is_right(server, *source),
            _ => true,
        };
        if self.tally.counts.iter().any(|(outcome, _)| wrong(outcome)) {
            self.probe.fail(goal, &self.tally.to_string());
        }
        self
    }
}

#[track_caller]
fn address(text: impl Display) -> SocketAddr {
    let text = text.to_string();
    text.parse().unwrap_or_else(|_| fail(&format!("not an address and port: {text}")))
}

fn quote(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().take(QUOTED).collect();
    if text.lines().count() > QUOTED {
        lines.push("…");
    }
    lines.join("\n")
}

#[track_caller]
#[allow(clippy::panic, reason = "an expectation that is not met fails the test that states it")]
fn fail(message: &str) -> ! {
    panic!("{message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(counts: &[(&str, usize)]) -> Tally {
        let source = IpAddr::from([192, 0, 2, 1]);
        let reached = |server: &str| Outcome::Reached { server: server.to_owned(), source };
        Tally { counts: counts.iter().map(|(name, count)| (reached(name), *count)).collect() }
    }

    #[test]
    fn shares_are_even_if_they_differ_by_chance_and_no_more() {
        assert!(tally(&[("b", 350), ("a", 334), ("c", 316)]).is_even_among(&["a", "b", "c"]));
        assert!(!tally(&[("a", 500), ("b", 250), ("c", 250)]).is_even_among(&["a", "b", "c"]));
        assert!(!tally(&[("a", 500), ("b", 500)]).is_even_among(&["a", "b", "c"]));
        assert!(!tally(&[("a", 500), ("b", 499), ("c", 1)]).is_even_among(&["a", "b"]));
        let mut lossy = tally(&[("a", 500), ("b", 500)]);
        lossy.add(Outcome::Reset);
        assert!(!lossy.is_even_among(&["a", "b"]));
    }
}
