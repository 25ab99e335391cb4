//! The verdict about a packet, from all that is known. Pure.

use std::net::SocketAddr;

use nfnetlink::conntrack::Usage;
use nix::errno::Errno;
use serde::Serialize;
use shunt_core::explain::{Choice, Code, End, Finding, Packet, Reasons, Walk};
use shunt_core::model::{Family, Protocol};
use shunt_core::plan::{FrontendKey, FrontendKind};

use super::Probe;
use super::facts::{EndpointFacts, PacketFacts};
use super::others::Passing;
use super::probe::ProbeOutcome;
use crate::serve::status::AgentStatus;

/// A change counts as late after this many seconds: a commit takes milliseconds.
const LATE: f64 = 2.0;

/// What the way of a packet may depend on.
const INTERFACE: &str =
    "the interface on which the packet arrives is unknown; this assumes that it is not a pod's";

/// The verdict shows what they do with this packet.
const DIFFERENCE: &str = "the kernel's tables differ from the plan: another process changed them, and the agent repairs \
     them at its next check (`shunt diff` shows all differences)";

/// What becomes of a new connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// An endpoint gets it.
    Delivered,
    /// Some endpoints that it may get are reachable, and others are not.
    Partial,
    /// The client gets an error at once.
    Refused,
    /// No endpoint gets it, and the client gets no answer.
    Dropped,
    /// The destination is not one of a Service.
    NotAService,
    /// Something decides that is not known here.
    #[default]
    Unknown,
}

impl Verdict {
    /// Returns the exit status of the command.
    #[must_use]
    pub fn exit_status(self) -> u8 {
        match self {
            Verdict::Delivered => 0,
            Verdict::Refused | Verdict::Dropped => 3,
            Verdict::NotAService => 4,
            Verdict::Unknown => 1,
            Verdict::Partial => 5,
        }
    }
}

/// The verdict, the findings, and the verdicts on endpoints.
pub type Judgement = (Verdict, Vec<Finding>, Vec<Verdict>);

/// Judges a packet, and returns the findings, most important first, and the verdicts on the
/// endpoints that the connection may get. `way` is its way through the kernel's tables, or the
/// planned one without them.
#[must_use]
pub fn judge(
    packet: &Packet,
    reasons: &Reasons,
    way: &Walk,
    planned: &Walk,
    facts: &PacketFacts,
    status: Option<&AgentStatus>,
) -> Judgement {
    let mut endpoints = Vec::new();
    let mut judge = Judge { packet, reasons, facts, findings: Vec::new() };
    let state = status.map(|status| agent(status, reasons)).unwrap_or_default();
    let is_programmed = status.is_none_or(|status| status.rules.last_sync.is_some());
    let verdict = match &way.end {
        End::Rejected(_) => Verdict::Refused,
        End::Dropped(_) => Verdict::Dropped,
        End::Foreign(_) => Verdict::Unknown,
        _ if !is_programmed => Verdict::Unknown,
        _ if reasons.is_proxied => judge.proxied(status),
        // The node itself may answer, or another program may translate the packet instead.
        End::Untouched | End::NoTable if reasons.target.is_some() => {
            let may_translate = status.is_some_and(|status| status.kube_proxy.has_rules());
            // Only an address of the cluster has no other owner outside of it.
            let is_cluster_ip =
                reasons.target.as_ref().is_some_and(|it| it.kind == FrontendKind::ClusterIp);
            match facts.before {
                Passing::Untracked(_) if facts.is_for_node => Verdict::NotAService,
                _ if may_translate || facts.is_for_node || !is_cluster_ip => Verdict::Unknown,
                _ => Verdict::Dropped,
            }
        }
        End::Untouched | End::NoTable => Verdict::NotAService,
        End::Translated { choices, lost, .. } => {
            let fates = choices.iter().enumerate();
            endpoints = fates.map(|(place, choice)| judge.fate(place, choice)).collect();
            // What finds no slot is not translated.
            if *lost > 0.0 { Verdict::Unknown } else { joined(&endpoints) }
        }
    };
    judge.findings.extend(reasons.findings.iter().cloned());
    // A change that waits, or that the kernel refuses, explains a difference.
    let is_explained = state
        .iter()
        .any(|finding| matches!(finding.code, Code::NotCommittedYet | Code::Quarantined));
    if !is_explained && !way.agrees_with(planned) {
        judge.first(Code::KernelDiffers, DIFFERENCE.to_owned());
    }
    let verdict = judge.elsewhere(verdict);
    let verdict = judge.before(verdict);
    let verdict = judge.full_table(verdict);
    let mut findings = judge.findings;
    findings.extend(state);
    if way.assumes_interface {
        findings.push(Finding::new(Code::Assumed, INTERFACE));
    }
    (verdict, findings, endpoints)
}

/// What is known of a packet, and the findings so far.
struct Judge<'a> {
    packet: &'a Packet,
    reasons: &'a Reasons,
    facts: &'a PacketFacts,
    findings: Vec<Finding>,
}

impl Judge<'_> {
    /// Adds a finding that is more important than all before.
    fn first(&mut self, code: Code, text: String) {
        self.findings.insert(0, Finding::new(code, text));
    }

    fn find(&mut self, code: Code, text: String) {
        let finding = Finding::new(code, text);
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    fn is_datagram(&self) -> bool {
        self.packet.protocol == Protocol::Udp.number()
    }

    /// Judges a connection to the agent's proxy on a loopback address.
    fn proxied(&mut self, status: Option<&AgentStatus>) -> Verdict {
        let address = SocketAddr::new(self.packet.destination, self.packet.port).to_string();
        let unbound = status.map_or(&[][..], |status| &status.unbound_ports);
        if let Some(unbound) = unbound.iter().find(|it| it.address == address) {
            let text = format!(
                "the agent cannot listen on {address}: {}; if another process holds the port, it \
             answers",
                unbound.reason
            );
            self.find(Code::LoopbackPortTaken, text);
            return Verdict::Unknown;
        }
        match self.reasons.endpoints.iter().any(|view| view.used) {
            true => Verdict::Delivered,
            false => Verdict::Refused,
        }
    }

    /// Returns the verdict with regard to the fill level of connection tracking. A full table still
    /// takes a connection for which the kernel can evict another.
    fn full_table(&mut self, verdict: Verdict) -> Verdict {
        let Some(Usage { entries, limit: Some(limit @ 1..) }) = self.facts.conntrack else {
            return verdict;
        };
        if entries < limit {
            return verdict;
        }
        let text = format!(
            "connection tracking is full ({entries} of {limit} entries), so the kernel may drop new \
             connections: raise net.netfilter.nf_conntrack_max"
        );
        self.first(Code::ConntrackFull, text);
        match verdict {
            Verdict::Delivered | Verdict::Partial => Verdict::Unknown,
            verdict => verdict,
        }
    }

    /// Returns the verdict with regard to other programs' chains before shunt's rules.
    fn before(&mut self, verdict: Verdict) -> Verdict {
        let Some(finding) = self.facts.before.finding("the packet before shunt's rules") else {
            return verdict;
        };
        let has_no_service = matches!(verdict, Verdict::Refused | Verdict::Dropped);
        let judged = match &self.facts.before {
            Passing::Untracked(_) => verdict,
            _ if verdict == Verdict::NotAService => return verdict,
            Passing::Drops(_) => Verdict::Dropped,
            Passing::Rejects(_) => Verdict::Refused,
            // A rule that may drop the packet does not make it arrive.
            Passing::May(_) if has_no_service => verdict,
            _ => Verdict::Unknown,
        };
        // A possible cause comes behind the certain ones.
        let is_extra = judged == verdict && has_no_service && finding.code != Code::Untracked;
        let place = if is_extra { self.findings.len() } else { 0 };
        self.findings.insert(place, finding);
        judged
    }

    /// Judges a probe that no endpoint of the Service got.
    fn elsewhere(&mut self, verdict: Verdict) -> Verdict {
        let Some(Probe { outcome, trace, .. }) = &self.facts.probe else { return verdict };
        if verdict == Verdict::NotAService
            || self.facts.endpoints.iter().any(|it| it.probe.is_some())
        {
            return verdict;
        }
        let Some(trace) = trace else {
            let text = "no rule of this node saw the probe: something on the client's side of them \
                        may have taken it";
            self.first(Code::Assumed, text.to_owned());
            return Verdict::Unknown;
        };
        if let Some(foreign) = trace.backend {
            let text = format!(
                "another program translated the connection to {foreign}, which is not an endpoint \
                 of the Service: see `shunt trace`"
            );
            self.first(Code::ForeignTranslation, text);
        }
        match outcome {
            // The agent itself has answered.
            ProbeOutcome::Answered if self.reasons.is_proxied => Verdict::Delivered,
            ProbeOutcome::Answered => Verdict::Unknown,
            ProbeOutcome::Refused(_) => Verdict::Refused,
            // A server need not answer an empty datagram.
            ProbeOutcome::NoAnswer if self.is_datagram() => verdict,
            ProbeOutcome::NoAnswer => Verdict::Dropped,
        }
    }

    /// Judges an endpoint by the packet that was sent to it. A datagram without an answer decides
    /// nothing.
    fn probed(&mut self, backend: SocketAddr, facts: &EndpointFacts) -> Option<Verdict> {
        let Probe { outcome, trace, .. } = facts.probe.as_ref()?;
        let trace = trace.as_ref()?;
        let reason = trace.reason.as_deref().unwrap_or("the trace shows no reason");
        let unreachable = |reason: &str| {
            (Code::EndpointUnreachable, format!("endpoint {backend} is unreachable: {reason}"))
        };
        let verdict = match outcome {
            ProbeOutcome::Answered => return Some(Verdict::Delivered),
            ProbeOutcome::Refused(_) => Verdict::Refused,
            ProbeOutcome::NoAnswer => Verdict::Dropped,
        };
        let foreign = facts.others.finding(&format!("packets to endpoint {backend}"));
        let (code, text) = match (foreign, outcome) {
            (Some(foreign), _) => (foreign.code, foreign.text),
            (None, ProbeOutcome::Refused(errno @ (Errno::EHOSTUNREACH | Errno::ENETUNREACH))) => {
                unreachable(errno.desc())
            }
            (None, ProbeOutcome::Refused(_)) => {
                let text = format!(
                    "endpoint {backend} refuses the connection: nothing listens on that port, or a \
                 firewall rejects it"
                );
                (Code::EndpointRefuses, text)
            }
            (None, _) if trace.outcome == "lost" => unreachable(reason),
            (None, _) if self.is_datagram() => return None,
            (None, _) => (
                Code::EndpointNotAnswering,
                format!("endpoint {backend} does not answer: {reason}"),
            ),
        };
        self.find(code, text);
        Some(verdict)
    }

    /// Judges what the packet meets on its way to the endpoint, in this order.
    fn fate(&mut self, place: usize, choice: &Choice) -> Verdict {
        let backend = SocketAddr::new(choice.backend.address, choice.backend.port);
        let facts = self.facts.endpoints.get(place);
        if let Some(verdict) = facts.and_then(|facts| self.probed(backend, facts)) {
            return verdict;
        }
        let mut views = self.reasons.endpoints.iter();
        let is_local = views.any(|view| view.is_local && view.address == choice.backend.address);
        let mut fate = Verdict::Delivered;
        if let Some(EndpointFacts { reach, others, .. }) = facts {
            if reach.route.is_none() {
                let text = format!("cannot read the route to endpoint {backend}");
                self.find(Code::EndpointUnreachable, text);
                fate = Verdict::Unknown;
            } else if let Some((obstacle, verdict)) = &reach.obstacle {
                let text = format!("endpoint {backend} is unreachable: {obstacle}");
                self.find(Code::EndpointUnreachable, text);
                return *verdict;
            } else if let Some(router) = reach.default_router.filter(|_| is_local) {
                let text = format!(
                    "the EndpointSlice puts endpoint {backend} on this node, but packets to it \
                     leave by the default route to {router}: is its pod gone?"
                );
                self.find(Code::EndpointUnreachable, text);
                fate = Verdict::Unknown;
            } else if let Some(finding) = others.finding(&format!("packets to endpoint {backend}"))
            {
                self.find(finding.code, finding.text);
                fate = match others {
                    Passing::Drops(_) => return Verdict::Dropped,
                    Passing::Rejects(_) => return Verdict::Refused,
                    _ => Verdict::Unknown,
                };
            }
        }
        let packet = self.packet;
        let is_hairpin = choice.backend.address == packet.source && !packet.from_node;
        if is_hairpin && choice.masquerade.is_none() {
            let text = format!(
                "the client is the endpoint {backend} itself, and nothing masquerades the \
                 connection: its answers do not come back through the node; does the EndpointSlice \
                 name this node in nodeName?"
            );
            self.find(Code::HairpinWithoutMasquerade, text);
            // A single datagram arrives: only IPv4 drops packets whose source is the receiver.
            let is_received = packet.family() == Family::V6 && self.is_datagram();
            // A rule that may refuse it comes first.
            return if is_received || fate == Verdict::Unknown {
                Verdict::Unknown
            } else {
                Verdict::Dropped
            };
        }
        if let Some(&EndpointFacts { answered, waiting: waiting @ 1.., .. }) = facts
            && fate == Verdict::Delivered
        {
            let text = match answered {
                0 => {
                    format!("endpoint {backend} has answered none of {waiting} tracked connections")
                }
                answered => format!(
                    "endpoint {backend} has not answered {waiting} tracked connections, but has \
                     answered {answered} others, which may be older"
                ),
            };
            let text = format!("{text}; --probe shows whether it answers now");
            // An entry stays for two minutes, even if its client has given up and the endpoint is back.
            self.find(Code::EndpointNotAnswering, text);
            fate = Verdict::Unknown;
        }
        fate
    }
}

/// Joins the verdicts on all endpoints that the random choice may give.
fn joined(fates: &[Verdict]) -> Verdict {
    let has = |verdict| fates.contains(&verdict);
    let is_lost = has(Verdict::Refused) || has(Verdict::Dropped);
    match (has(Verdict::Delivered), is_lost, has(Verdict::Unknown)) {
        (true, true, _) => Verdict::Partial,
        (_, _, true) => Verdict::Unknown,
        (true, false, _) => Verdict::Delivered,
        _ if has(Verdict::Dropped) => Verdict::Dropped,
        _ => Verdict::Refused,
    }
}

/// Returns the findings about the agent: whether its last sync succeeded and its objects are recent.
fn agent(status: &AgentStatus, reasons: &Reasons) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |code, text: String| findings.push(Finding::new(code, text));
    let key = reasons.target.as_ref().map(|target| target.key);
    let name = key.map(|key| key.to_string());
    let mut quarantined = status.rules.quarantined.iter();
    if let Some(refused) = quarantined.find(|it| name.is_some() && it.frontend == name) {
        let text = format!(
            "the kernel refuses {}: {}; its previous state stays in effect",
            refused.what, refused.reason
        );
        find(Code::Quarantined, text);
    }
    let waits = status.waiting_seconds.filter(|it| *it > LATE && status.rules.failure.is_none());
    if let Some(seconds) = waits {
        let text = format!("a change has waited for {seconds:.0} s and is not in the kernel");
        find(Code::NotCommittedYet, text);
    }
    for problem in status.problems.iter().chain(&status.warnings) {
        let code = match problem.code {
            "sync-failed" | "not-programmed" => Code::NotCommittedYet,
            "api-stale" => Code::ApiStale,
            "kube-proxy-present" => Code::KubeProxyPresent,
            _ => continue,
        };
        find(code, problem.text.clone());
    }
    if let Some(FrontendKey::NodePort(_, protocol, port)) = key
        && let Some(taken) = status.taken_node_ports.find(protocol, port)
    {
        find(Code::NodePortTaken, taken.to_string());
    }
    findings
}

#[cfg(test)]
mod tests {
    use shunt_core::model::Backend;

    use super::*;

    /// One limit holds for all namespaces of a machine, so no packet test fills the table.
    #[test]
    fn full_connection_tracking_may_drop_new_connections() {
        let backend = Backend { address: "10.244.0.11".parse().expect("an address"), port: 8080 };
        let packet = Packet {
            source: "192.0.2.100".parse().expect("an address"),
            destination: "10.96.0.10".parse().expect("an address"),
            protocol: 6,
            port: 80,
            interface: None,
            from_node: false,
        };
        let end = End::Translated {
            choices: vec![Choice::of(backend, 1.0)],
            pools: None,
            frontend: FrontendKey::Address(packet.destination, Protocol::Tcp, 80),
            lost: 0.0,
        };
        let way = Walk { end, marked: None, assumes_interface: false };
        let verdict = |entries, limit| {
            let conntrack = Some(Usage { entries, limit: Some(limit) });
            let facts = PacketFacts { conntrack, ..PacketFacts::default() };
            let (verdict, findings, _) =
                judge(&packet, &Reasons::default(), &way, &way, &facts, None);
            (verdict, findings.iter().map(|it| it.code).collect::<Vec<Code>>())
        };
        assert_eq!(verdict(99, 100), (Verdict::Delivered, vec![]));
        assert_eq!(verdict(100, 100), (Verdict::Unknown, vec![Code::ConntrackFull]));
    }
}
