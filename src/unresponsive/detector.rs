//! Decides which endpoints do not answer. The time and all observations are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use foldhash::HashSet;

use super::flows::{FlowId, Flows, Wanted};
use super::prober::Answer;
use super::report::Reason;

/// How long a host must be silent that shows no sign of life. It begins with the first repeated
/// SYN, one second after the first. So a client that sends SYNs after 0, 1 and 3 s connects with the
/// third.
const HOST_SILENCE: Duration = Duration::from_millis(1_200);
/// How long a port must be silent on a host that answers on another one. A server with a full accept
/// queue accepts now and then.
const PORT_SILENCE: Duration = Duration::from_secs(10);
/// Repeated SYNs count no more for this time after an answer of the endpoint. A client that a policy
/// blocks repeats its SYNs for ever.
const CALM: Duration = Duration::from_secs(3);
/// A suspicion ends this time after the last repeated SYN.
const SUSPICION: Duration = Duration::from_secs(15);
/// The evidence of connection tracking is at most this old.
const FLOWS_AGE: Duration = Duration::from_millis(500);
/// The pause before the second probe of a suspect, and before each further one.
const SECOND_PROBE: Duration = Duration::from_millis(600);
const NEXT_PROBE: Duration = Duration::from_secs(1);
/// The number of probes without an answer before a verdict. Each is a flow of its own.
const MIN_PROBES: u32 = 2;
/// The number of siblings that are probed at a time, and the pause before others are.
const SIBLINGS: usize = 3;
const NEXT_SIBLINGS: Duration = Duration::from_millis(400);
/// A port on which hardly any server listens (discard). A live host refuses the connection.
const OTHER_PORT: u16 = 9;
/// The maximum number of endpoints under suspicion.
const MAX_SUSPECTS: usize = 256;

/// How long a probe of an unresponsive endpoint may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two probes of an unresponsive endpoint doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_FIRST_PAUSE: Duration = Duration::from_secs(16);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The maximum number of successful probes that an endpoint needs.
const MAX_SUCCESSES: usize = 5;
/// The number of probes, in a row, that no sibling answers either, before the agent doubts its verdict.
const DOUBTS: u32 = 2;
/// An endpoint returns for a trial after this time, if the agent may not be able to reach it.
const FIRST_TRIAL: Duration = Duration::from_secs(60);
const LONGEST_TRIAL: Duration = Duration::from_secs(600);
/// How long a verdict counts against an endpoint.
const MEMORY: Duration = Duration::from_secs(600);

/// The neighbourhood of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Neighbours {
    /// True if the endpoint is on this node.
    pub(super) is_local: bool,
    /// The other backends of its pools, each with true if it is on this node.
    pub(super) siblings: Vec<(SocketAddr, bool)>,
}

/// A change of an endpoint's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The endpoint answers nothing.
    Unresponsive(Reason),
    /// The endpoint answers again.
    Answers,
    /// No other backend answers either, so the network may be broken.
    Doubted,
    /// Nothing but a trial shows whether the endpoint answers again.
    Trial,
    /// The endpoint is in no pool any more.
    Forgotten,
}

/// The trust in the agent's own probes of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// A sibling at the same distance answers them.
    Probes,
    /// A sibling on this node answers them, and the pool has answered a client that waits. A network
    /// policy may block the agent from other nodes.
    Clients,
}

/// The state of all endpoints that clients wait for.
#[derive(Debug, Default)]
pub(super) struct Detector {
    suspects: BTreeMap<SocketAddr, Suspect>,
    unresponsive: BTreeMap<SocketAddr, Unresponsive>,
    /// Until when repeated SYNs to an endpoint do not count.
    calm: BTreeMap<SocketAddr, Instant>,
    /// When a probed backend last answered.
    alive: BTreeMap<SocketAddr, Instant>,
    /// When endpoints were found unresponsive, the last time at the end.
    verdicts: BTreeMap<SocketAddr, Vec<Instant>>,
    changes: Vec<(SocketAddr, Change)>,
}

#[derive(Debug)]
struct Suspect {
    since: Instant,
    last_repeated: Instant,
    probes: u32,
    next_probe: Instant,
    next_siblings: Instant,
    /// The number of siblings that were probed.
    probed: usize,
    /// The host has answered on another port.
    host_lives: bool,
    is_unreachable: bool,
    /// `None` until the objects were looked at.
    neighbours: Option<Neighbours>,
    /// The flows that had an answer at the first look.
    answered: Option<HashSet<FlowId>>,
    flows_at: Instant,
    /// The clients that wait for an answer.
    clients: BTreeSet<IpAddr>,
    /// A sibling has answered one of these clients, or the endpoint has, earlier.
    is_client_served: bool,
    reason: Reason,
}

#[derive(Debug)]
struct Unresponsive {
    since: Instant,
    reason: Reason,
    trust: Trust,
    neighbours: Neighbours,
    answered: HashSet<FlowId>,
    pause: Duration,
    next_probe: Instant,
    probed_at: Option<Instant>,
    probed: usize,
    successes: usize,
    doubts: u32,
}

/// An endpoint for the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) endpoint: SocketAddr,
    pub(super) is_unresponsive: bool,
    pub(super) since: Instant,
    pub(super) reason: Reason,
    /// The number of verdicts in the last minutes.
    pub(super) recent: usize,
}

impl Detector {
    /// Notes a SYN that a client repeated at this time.
    pub(super) fn repeated_syn(&mut self, endpoint: SocketAddr, at: Instant, now: Instant) {
        if let Some(suspect) = self.suspects.get_mut(&endpoint) {
            suspect.last_repeated = suspect.last_repeated.max(at);
            return;
        }
        let is_calm = self.calm.get(&endpoint).is_some_and(|until| at < *until);
        if is_calm
            || self.unresponsive.contains_key(&endpoint)
            || self.suspects.len() >= MAX_SUSPECTS
        {
            return;
        }
        let suspect = Suspect {
            since: now,
            last_repeated: at,
            probes: 0,
            next_probe: now,
            next_siblings: now,
            probed: 0,
            host_lives: false,
            is_unreachable: false,
            neighbours: None,
            answered: None,
            flows_at: now,
            clients: BTreeSet::new(),
            is_client_served: false,
            reason: Reason::RepeatedSyns,
        };
        self.suspects.insert(endpoint, suspect);
    }

    /// Returns true if connection tracking must be read.
    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Returns true if the objects must be looked at for a new suspect.
    pub(super) fn has_strangers(&self) -> bool {
        self.suspects.values().any(|suspect| suspect.neighbours.is_none())
    }

    /// Returns all endpoints that the detector follows.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        self.suspects.keys().chain(self.unresponsive.keys()).copied()
    }

    /// Notes the neighbours of all followed endpoints. Those without any are in no pool.
    pub(super) fn place(&mut self, mut all: BTreeMap<SocketAddr, Neighbours>, now: Instant) {
        let calm = &mut self.calm;
        self.suspects.retain(|endpoint, suspect| {
            let neighbours = all.remove(endpoint);
            let is_known = neighbours.is_some();
            if !is_known {
                calm.insert(*endpoint, now + CALM);
            }
            suspect.neighbours = neighbours;
            is_known
        });
        let changes = &mut self.changes;
        self.unresponsive.retain(|endpoint, found| match all.remove(endpoint) {
            Some(neighbours) => {
                found.neighbours = neighbours;
                true
            }
            None => {
                changes.push((*endpoint, Change::Forgotten));
                false
            }
        });
    }

    /// Returns the flows to look for.
    pub(super) fn wanted_flows(&self) -> Wanted {
        let mut wanted = Wanted { endpoints: self.endpoints().collect(), ..Wanted::default() };
        for suspect in self.suspects.values() {
            wanted.clients.extend(&suspect.clients);
            let neighbours = suspect.neighbours.iter();
            let siblings = neighbours.flat_map(|it| &it.siblings);
            wanted.siblings.extend(siblings.filter(|(_, is_local)| *is_local).map(|(it, _)| *it));
        }
        wanted
    }

    /// Notes the flows to all followed endpoints.
    pub(super) fn saw_flows(&mut self, mut flows: Flows, now: Instant) {
        let mut answered: Vec<SocketAddr> = Vec::new();
        let is_new = |before: &HashSet<FlowId>, seen: &HashSet<FlowId>| !seen.is_subset(before);
        for (endpoint, suspect) in &mut self.suspects {
            let seen = flows.endpoints.remove(endpoint).unwrap_or_default();
            match &suspect.answered {
                Some(before) if is_new(before, &seen.answered) => answered.push(*endpoint),
                Some(_) => {}
                None => suspect.answered = Some(seen.answered),
            }
            let siblings = suspect.neighbours.iter().flat_map(|it| &it.siblings);
            let served_by = |backend: &SocketAddr| flows.served.get(backend).into_iter().flatten();
            // A policy admits this node to its own pods, whatever it says of others.
            let by_siblings = siblings
                .flat_map(|(sibling, _)| served_by(sibling))
                .filter(|client| !flows.direct.contains(*client));
            let mut served = by_siblings.chain(served_by(endpoint));
            suspect.is_client_served = served.any(|client| seen.waiting.contains(client));
            suspect.clients = seen.waiting;
            suspect.flows_at = now;
        }
        for (endpoint, found) in &self.unresponsive {
            let seen = flows.endpoints.get(endpoint);
            // Several of the agent's own probes must be answered.
            if seen.is_some_and(|seen| is_new(&found.answered, &seen.answered_clients)) {
                answered.push(*endpoint);
            }
        }
        for endpoint in answered {
            self.answers(endpoint, now);
        }
    }

    /// Notes the result of a probe.
    pub(super) fn heard(&mut self, from: SocketAddr, answer: Answer, now: Instant) {
        let suspect = self.suspects.get_mut(&from);
        match (answer, suspect) {
            (Answer::NotSent, Some(suspect)) => suspect.probes = suspect.probes.saturating_sub(1),
            (Answer::Unreachable, Some(suspect)) => suspect.is_unreachable = true,
            (Answer::NotSent, None) => {
                if let Some(found) = self.unresponsive.get_mut(&from) {
                    found.probed_at = None;
                    found.next_probe = now + FIRST_PAUSE;
                }
            }
            (Answer::Unreachable, None) => {}
            (Answer::Answered, _) => {
                self.alive.insert(from, now);
                let on_host = self.suspects.iter_mut().filter(|(it, _)| it.ip() == from.ip());
                on_host.for_each(|(_, suspect)| suspect.host_lives = true);
                if self.suspects.contains_key(&from) {
                    self.answers(from, now);
                }
                self.answered_probe(from, now);
            }
        }
    }

    fn answered_probe(&mut self, from: SocketAddr, now: Instant) {
        let needed = self.recent(from, now).clamp(1, MAX_SUCCESSES);
        let Some(found) = self.unresponsive.get_mut(&from) else { return };
        // Late answers of earlier probes count as well, but none twice.
        if found.probed_at.take().is_none() {
            return;
        }
        found.successes += 1;
        found.next_probe = now + FIRST_PAUSE;
        if found.successes >= needed {
            self.answers(from, now);
        }
    }

    /// Ends the suspicion or the verdict: the endpoint answers.
    fn answers(&mut self, endpoint: SocketAddr, now: Instant) {
        self.calm.insert(endpoint, now + CALM);
        self.suspects.remove(&endpoint);
        if self.unresponsive.remove(&endpoint).is_some() {
            self.changes.push((endpoint, Change::Answers));
        }
    }

    /// Returns the number of verdicts in the last minutes.
    fn recent(&self, endpoint: SocketAddr, now: Instant) -> usize {
        let verdicts = self.verdicts.get(&endpoint).into_iter().flatten();
        verdicts.filter(|at| now.saturating_duration_since(**at) < MEMORY).count()
    }

    /// Returns the destinations of probes that are due.
    pub(super) fn probes(&mut self, now: Instant) -> BTreeSet<SocketAddr> {
        let mut due = BTreeSet::new();
        let followed: BTreeSet<SocketAddr> = self.endpoints().collect();
        let alive = &self.alive;
        let siblings = |neighbours: &Neighbours, probed: &mut usize| {
            let others = neighbours.siblings.iter().filter(|(it, _)| !followed.contains(it));
            let mut others: Vec<(SocketAddr, bool)> = others.copied().collect();
            // Those at the same distance first.
            others.sort_by_key(|(_, is_local)| *is_local && !neighbours.is_local);
            let answered_last =
                others.iter().filter_map(|(it, _)| Some((alive.get(it)?, *it))).max();
            let count = others.len();
            let others = others.into_iter().map(|(it, _)| it).cycle();
            let mut chosen: BTreeSet<SocketAddr> =
                others.skip(*probed % count.max(1)).take(SIBLINGS.min(count)).collect();
            *probed += chosen.len();
            chosen.extend(answered_last.map(|(_, it)| it));
            chosen
        };
        for (endpoint, suspect) in &mut self.suspects {
            let Some(neighbours) = &suspect.neighbours else { continue };
            if suspect.next_probe <= now {
                suspect.next_probe =
                    now + if suspect.probes == 0 { SECOND_PROBE } else { NEXT_PROBE };
                suspect.probes += 1;
                due.insert(*endpoint);
                if !suspect.host_lives {
                    due.insert(SocketAddr::new(endpoint.ip(), OTHER_PORT));
                }
            }
            let is_trusted = trust(suspect, neighbours, alive) == Some(Trust::Probes);
            if suspect.next_siblings <= now && !is_trusted {
                suspect.next_siblings = now + NEXT_SIBLINGS;
                due.extend(siblings(neighbours, &mut suspect.probed));
            }
        }
        for (endpoint, found) in &mut self.unresponsive {
            if found.next_probe <= now && found.probed_at.is_none() {
                found.probed_at = Some(now);
                due.insert(*endpoint);
                due.extend(siblings(&found.neighbours, &mut found.probed));
            }
        }
        due
    }

    /// Draws the conclusions of this moment.
    pub(super) fn decide(&mut self, now: Instant) {
        self.judge_suspects(now);
        self.judge_unresponsive(now);
        self.calm.retain(|_, until| now < *until);
        self.alive.retain(|_, at| now.saturating_duration_since(*at) < MEMORY);
        self.verdicts.retain(|_, all| {
            all.retain(|at| now.saturating_duration_since(*at) < MEMORY);
            !all.is_empty()
        });
    }

    fn judge_suspects(&mut self, now: Instant) {
        let mut silent = Vec::new();
        let alive = &self.alive;
        self.suspects.retain(|endpoint, suspect| {
            let age = |at| now.saturating_duration_since(at);
            if age(suspect.last_repeated) > SUSPICION {
                return false;
            }
            let silence = if suspect.host_lives { PORT_SILENCE } else { HOST_SILENCE };
            let (Some(neighbours), Some(answered)) = (&suspect.neighbours, &suspect.answered)
            else {
                return true;
            };
            let has_evidence = suspect.probes >= MIN_PROBES && age(suspect.flows_at) <= FLOWS_AGE;
            if age(suspect.since) < silence || !has_evidence {
                return true;
            }
            let Some(trust) = trust(suspect, neighbours, alive) else {
                suspect.reason = Reason::NoOtherAnswers;
                return true;
            };
            let reason = match (suspect.host_lives, suspect.is_unreachable) {
                (true, _) => Reason::SilentPort,
                (false, true) => Reason::UnreachableHost,
                (false, false) => Reason::SilentHost,
            };
            silent.push((*endpoint, reason, trust, neighbours.clone(), answered.clone()));
            false
        });
        for (endpoint, reason, trust, neighbours, answered) in silent {
            self.verdicts.entry(endpoint).or_default().push(now);
            let pause = doubled(FIRST_PAUSE, self.recent(endpoint, now), LONGEST_FIRST_PAUSE);
            let found = Unresponsive {
                since: now,
                reason,
                trust,
                neighbours,
                answered,
                pause,
                next_probe: now + pause,
                probed_at: None,
                probed: 0,
                successes: 0,
                doubts: 0,
            };
            self.unresponsive.insert(endpoint, found);
            self.changes.push((endpoint, Change::Unresponsive(reason)));
        }
    }

    fn judge_unresponsive(&mut self, now: Instant) {
        let mut over = Vec::new();
        for (endpoint, found) in &mut self.unresponsive {
            if let Some(at) = found.probed_at.filter(|at| *at + PROBE_TIMEOUT <= now) {
                found.probed_at = None;
                found.successes = 0;
                found.pause = (found.pause * 2).min(LONGEST_PAUSE);
                found.next_probe = now + found.pause;
                let mut siblings = found.neighbours.siblings.iter();
                let answers =
                    |it: &SocketAddr| self.alive.get(it).is_some_and(|alive| *alive >= at);
                found.doubts =
                    if siblings.any(|(it, _)| answers(it)) { 0 } else { found.doubts + 1 };
                if found.doubts >= DOUBTS {
                    over.push((*endpoint, Change::Doubted));
                }
            }
            let trial = match found.trust {
                // A policy may admit this node to some of the backends only.
                Trust::Probes => LONGEST_TRIAL,
                Trust::Clients => {
                    let recent = self.verdicts.get(endpoint).map_or(1, Vec::len);
                    doubled(FIRST_TRIAL, recent, LONGEST_TRIAL)
                }
            };
            if found.since + trial <= now {
                over.push((*endpoint, Change::Trial));
            }
        }
        for (endpoint, change) in over {
            if self.unresponsive.remove(&endpoint).is_some() {
                self.changes.push((endpoint, change));
            }
        }
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<(SocketAddr, Change)> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the endpoints that do not answer, the ones known for longest first.
    pub(super) fn unresponsive(&self) -> Vec<SocketAddr> {
        let mut all: Vec<(Instant, SocketAddr)> =
            self.unresponsive.iter().map(|(endpoint, found)| (found.since, *endpoint)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, endpoint)| endpoint).collect()
    }

    /// Returns all endpoints for the report, in order.
    pub(super) fn found(&self, now: Instant) -> Vec<Found> {
        let suspects = self.suspects.iter().filter(|(_, it)| it.neighbours.is_some());
        let suspects = suspects.map(|(endpoint, it)| (*endpoint, false, it.since, it.reason));
        let found = self.unresponsive.iter();
        let found = found.map(|(endpoint, it)| (*endpoint, true, it.since, it.reason));
        let mut all: Vec<Found> = suspects
            .chain(found)
            .map(|(endpoint, is_unresponsive, since, reason)| Found {
                endpoint,
                is_unresponsive,
                since,
                reason,
                recent: self.recent(endpoint, now),
            })
            .collect();
        all.sort_by_key(|found| found.endpoint);
        all
    }
}

/// Returns the trust in the probes of a suspect; `None` if they prove nothing.
fn trust(
    suspect: &Suspect,
    neighbours: &Neighbours,
    alive: &BTreeMap<SocketAddr, Instant>,
) -> Option<Trust> {
    let answers = |it: &SocketAddr| alive.get(it).is_some_and(|at| *at >= suspect.since);
    let mut answering = neighbours.siblings.iter().filter(|(it, _)| answers(it)).peekable();
    answering.peek()?;
    if answering.any(|(_, is_local)| neighbours.is_local || !is_local) {
        return Some(Trust::Probes);
    }
    suspect.is_client_served.then_some(Trust::Clients)
}

/// Doubles a duration with each repetition after the first.
fn doubled(first: Duration, repetition: usize, longest: Duration) -> Duration {
    let exponent = u32::try_from(repetition.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    (first * 2_u32.saturating_pow(exponent)).min(longest)
}

#[cfg(test)]
mod tests;
