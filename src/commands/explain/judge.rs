//! The verdict about a packet, from all that is known. Pure.

use std::net::SocketAddr;

use serde::Serialize;
use shunt_core::explain::{Choice, Code, End, Entry, Finding, Masquerade, Packet, Reasons};
use shunt_core::model::{Family, Protocol};
use shunt_core::plan::{FrontendKey, FrontendKind};

use super::Way;
use super::facts::{EndpointFacts, Facts, Passing, Reach};
use crate::serve::status::{Source, Status};

/// A change counts as late after this many seconds: a commit takes milliseconds.
const LATE: f64 = 2.0;

/// What becomes of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// An endpoint gets it.
    Delivered,
    /// The client gets an error at once.
    Refused,
    /// No endpoint gets it, and the client gets no answer.
    Dropped,
    /// The destination is not one of a Service.
    NotAService,
    /// Something decides that is not known here.
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
        }
    }
}

/// The fate of a connection that gets one of the endpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Delivered,
    /// It does not arrive, without an answer.
    Lost,
    /// It does not arrive, and the client gets an error.
    Refused,
    Unknown,
}

/// Judges a packet, and returns the findings, most important first. `way` is its way through the kernel's tables, or the planned one without them.
#[must_use]
pub fn judge(
    packet: &Packet,
    reasons: &Reasons,
    way: &Way,
    planned: &Way,
    facts: &Facts,
    status: Option<&Status>,
) -> (Verdict, Vec<Finding>) {
    let mut findings = Vec::new();
    let state = status.map(|status| agent(status, reasons)).unwrap_or_default();
    let is_programmed = status.is_none_or(|status| status.rules.last_sync.is_some());
    let verdict = match &way.walk.end {
        End::Rejected(_) => Verdict::Refused,
        End::Dropped(_) => Verdict::Dropped,
        End::Foreign(_) => Verdict::Unknown,
        _ if !is_programmed => Verdict::Unknown,
        _ if reasons.is_proxied => proxied(packet, reasons, status, &mut findings),
        // The node itself may answer, or another program may translate the packet instead.
        End::Untouched | End::NoTable if reasons.target.is_some() => {
            let may_translate = status.is_some_and(|status| status.kube_proxy.has_rules());
            // Only an address of the cluster has no other owner outside of it.
            let is_cluster_ip =
                reasons.target.as_ref().is_some_and(|it| it.kind == FrontendKind::ClusterIp);
            match may_translate || facts.is_for_node || !is_cluster_ip {
                true => Verdict::Unknown,
                false => Verdict::Dropped,
            }
        }
        End::Untouched | End::NoTable => Verdict::NotAService,
        End::Translated { choices, lost, .. } => {
            translated(packet, reasons, choices, *lost, way, facts, &mut findings)
        }
    };
    findings.extend(reasons.findings.iter().cloned());
    // A change that waits, or that the kernel refuses, explains a difference.
    let is_explained = state
        .iter()
        .any(|finding| matches!(finding.code, Code::NotCommittedYet | Code::Quarantined));
    if !is_explained && !way.agrees_with(planned) {
        findings.insert(0, Finding::new(Code::KernelDiffers, difference(way)));
    }
    let verdict = before(facts, verdict, &mut findings);
    let verdict = full_table(facts, verdict, &mut findings);
    findings.extend(state);
    findings.extend(
        way.walk
            .assumptions
            .iter()
            .map(|assumption| Finding::new(Code::Assumed, assumption.to_string())),
    );
    (verdict, findings)
}

/// Judges a connection to the agent's proxy on a loopback address.
fn proxied(
    packet: &Packet,
    reasons: &Reasons,
    status: Option<&Status>,
    findings: &mut Vec<Finding>,
) -> Verdict {
    let address = SocketAddr::new(packet.destination, packet.port).to_string();
    let unbound = status.map_or(&[][..], |status| &status.loopback.unbound);
    if let Some(unbound) = unbound.iter().find(|it| it.address == address) {
        let text = format!(
            "the agent cannot listen on {address}: {}; if another process holds the port, it \
             answers",
            unbound.reason
        );
        findings.push(Finding::new(Code::LoopbackPortTaken, text));
        return Verdict::Unknown;
    }
    match reasons.endpoints.iter().any(|view| view.used) {
        true => Verdict::Delivered,
        false => Verdict::Refused,
    }
}

/// Returns the verdict with regard to the fill level of connection tracking.
fn full_table(facts: &Facts, verdict: Verdict, findings: &mut Vec<Finding>) -> Verdict {
    let Some(conntrack) = facts.conntrack.filter(|it| it.is_full) else { return verdict };
    let effect = match conntrack.has_evictable {
        true => "may drop",
        false => "drops",
    };
    let text = format!(
        "connection tracking is full ({} of {} entries), so the kernel {effect} new connections: \
         raise net.netfilter.nf_conntrack_max",
        conntrack.usage.entries,
        conntrack.usage.limit.unwrap_or(0)
    );
    findings.insert(0, Finding::new(Code::ConntrackFull, text));
    match (verdict, conntrack.has_evictable) {
        (Verdict::Delivered | Verdict::Unknown, false) => Verdict::Dropped,
        (Verdict::Delivered, true) => Verdict::Unknown,
        (verdict, _) => verdict,
    }
}

/// Returns the verdict with regard to other programs' chains before shunt's rules.
fn before(facts: &Facts, verdict: Verdict, findings: &mut Vec<Finding>) -> Verdict {
    let Some(finding) = facts.before.finding("the packet before shunt's rules") else {
        return verdict;
    };
    let has_no_service = matches!(verdict, Verdict::Refused | Verdict::Dropped);
    let judged = match &facts.before {
        _ if verdict == Verdict::NotAService => return verdict,
        Passing::Drops(_) => Verdict::Dropped,
        Passing::Rejects(_) => Verdict::Refused,
        // A rule that may drop the packet does not make it arrive.
        Passing::May(_) if has_no_service => verdict,
        _ => Verdict::Unknown,
    };
    // A possible cause comes behind the certain ones.
    let place = if judged == verdict && has_no_service { findings.len() } else { 0 };
    findings.insert(place, finding);
    judged
}

/// Judges a translated packet by the fates of its possible endpoints.
fn translated(
    packet: &Packet,
    reasons: &Reasons,
    choices: &[Choice],
    lost: f64,
    way: &Way,
    facts: &Facts,
    findings: &mut Vec<Finding>,
) -> Verdict {
    let (mut delivered, mut refused, mut unknown) = (0, 0, 0);
    for (place, choice) in choices.iter().enumerate() {
        let masquerade = way.masquerades.get(place).copied().flatten();
        let facts = facts.endpoints.get(place);
        let is_local = reasons
            .endpoints
            .iter()
            .any(|view| view.is_local && view.address == choice.backend.address);
        match fate(packet, choice, is_local, masquerade, facts, findings) {
            Fate::Delivered => delivered += 1,
            Fate::Lost => {}
            Fate::Refused => refused += 1,
            Fate::Unknown => unknown += 1,
        }
    }
    match (delivered, unknown) {
        // What finds no slot is not translated.
        _ if lost > 0.0 => Verdict::Unknown,
        (0, 0) if refused == choices.len() => Verdict::Refused,
        (0, 0) => Verdict::Dropped,
        (all, _) if all == choices.len() => Verdict::Delivered,
        // The random choice decides.
        _ => Verdict::Unknown,
    }
}

/// Judges what the packet meets on its way to the endpoint, in this order.
fn fate(
    packet: &Packet,
    choice: &Choice,
    is_local: bool,
    masquerade: Option<Masquerade>,
    facts: Option<&EndpointFacts>,
    findings: &mut Vec<Finding>,
) -> Fate {
    let backend = SocketAddr::new(choice.backend.address, choice.backend.port);
    let mut find = |finding: Finding| {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    };
    let unreachable = |text| Finding::new(Code::EndpointUnreachable, text);
    let mut fate = Fate::Delivered;
    if let Some(EndpointFacts { reach, others, .. }) = facts {
        if *reach == Reach::Unknown {
            let text = format!("the route to endpoint {backend} could not be read");
            find(unreachable(text));
            fate = Fate::Unknown;
        } else if let Some(obstacle) = reach.obstacle() {
            find(unreachable(format!("endpoint {backend} is unreachable: {obstacle}")));
            return match reach {
                Reach::Refused { answers: true, .. } => Fate::Refused,
                _ => Fate::Lost,
            };
        } else if let Some(router) = reach.default_router().filter(|_| is_local) {
            find(unreachable(format!(
                "endpoint {backend} is on this node by its EndpointSlice, but packets to it leave by the \
                 default route to {router}: is its pod gone?"
            )));
            fate = Fate::Unknown;
        } else if let Some(finding) = others.finding(&format!("packets to endpoint {backend}")) {
            find(finding);
            fate = match others {
                Passing::Drops(_) => return Fate::Lost,
                Passing::Rejects(_) => return Fate::Refused,
                _ => Fate::Unknown,
            };
        }
    }
    let is_hairpin = choice.backend.address == packet.source && packet.entry != Entry::Node;
    if is_hairpin && masquerade.is_none() {
        let text = format!(
            "the client is the endpoint {backend} itself, and nothing masquerades the connection: \
             its answers would not come back through the node; does the EndpointSlice name this \
             node in nodeName?"
        );
        find(Finding::new(Code::HairpinWithoutMasquerade, text));
        // A single datagram arrives: only IPv4 drops packets whose source is the receiver.
        let is_received =
            packet.family() == Family::V6 && packet.protocol == Protocol::Udp.number();
        // A rule that may refuse it comes first.
        return if is_received || fate == Fate::Unknown { Fate::Unknown } else { Fate::Lost };
    }
    let tracked = facts.map(|facts| facts.tracked).filter(|it| it.waiting > 0);
    if let Some(tracked) = tracked.filter(|_| fate == Fate::Delivered) {
        let text = format!(
            "endpoint {backend} has not answered {} tracked connections, but {} others; --probe \
             shows whether it answers now",
            tracked.waiting,
            match tracked.answered {
                0 => "no".to_owned(),
                answered => format!("answered {answered}"),
            }
        );
        // An entry stays for two minutes, even if its client has given up and the endpoint is back.
        find(Finding::new(Code::EndpointNotAnswering, text));
        if tracked.answered == 0 {
            fate = Fate::Unknown;
        }
    }
    fate
}

/// Returns the findings about the agent: whether its last sync succeeded and its objects are recent.
fn agent(status: &Status, reasons: &Reasons) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |code, text: String| findings.push(Finding::new(code, text));
    let rules = &status.rules;
    let key = reasons.target.as_ref().map(|target| target.key);
    let name = key.map(|key| key.to_string());
    if let Some(refused) = rules.quarantined.iter().find(|it| name.is_some() && it.frontend == name)
    {
        let text = format!(
            "the kernel refuses {}: {}; what it had before stays in force",
            refused.what, refused.reason
        );
        find(Code::Quarantined, text);
    }
    let waits = status.waiting_seconds.filter(|seconds| *seconds > LATE);
    let late = match (&rules.failure, &rules.last_sync) {
        (Some(failure), _) => Some(format!(
            "the last sync failed, so the latest changes are not in the kernel: {}",
            failure.reason
        )),
        (None, None) => Some(
            "the agent has not programmed anything yet: its source has not listed all objects"
                .to_owned(),
        ),
        _ => waits.map(|it| format!("a change has waited for {it:.0} s and is not in the kernel")),
    };
    if let Some(text) = late {
        find(Code::NotCommittedYet, text);
    }
    if let Source::Api { trouble: Some(trouble), .. } = &status.source {
        let text =
            format!("{}, for {:.0} s: this is the earlier state", trouble.reason, trouble.seconds);
        find(Code::ApiStale, text);
    }
    if !status.kube_proxy.is_nothing() {
        let text = format!(
            "kube-proxy or its leftovers are on this node: {}; its rules may translate the packet \
             before shunt's: run shunt cleanup --kube-proxy --keep-own",
            status.kube_proxy
        );
        find(Code::KubeProxyPresent, text);
    }
    if let Some(FrontendKey::NodePort(_, protocol, port)) = key
        && let Some(taken) = status.taken_node_ports.find(protocol, port)
    {
        find(Code::NodePortTaken, taken.to_string());
    }
    findings
}

fn difference(way: &Way) -> String {
    let what = match &way.walk.end {
        End::NoTable => "the table or its base chain is missing".to_owned(),
        End::Foreign(chain) => format!("chain {chain} has a rule or element of another program"),
        End::Untouched => "no rule translates the packet".to_owned(),
        End::Rejected(chain) => format!("chain {chain} rejects the packet"),
        End::Dropped(chain) => format!("chain {chain} drops the packet"),
        End::Translated { lost, .. } if *lost > 0.0 => format!(
            "{:.0} % of new connections find no slot in the map of endpoints and are not translated",
            lost * 100.0
        ),
        End::Translated { choices, .. } => format!(
            "it has {} endpoints for this packet, and not those of the plan, or masquerades it \
             otherwise",
            choices.len()
        ),
    };
    format!(
        "the kernel's tables differ from the plan: {what}; another process has changed them, and \
         the agent repairs them at its next check (shunt diff shows all differences)"
    )
}

#[cfg(test)]
mod tests {
    use nfnetlink::conntrack::Usage;
    use shunt_core::explain::{End, Walk};
    use shunt_core::model::Backend;

    use super::*;
    use crate::commands::explain::facts::ConntrackFacts;

    /// One limit holds for all namespaces of a machine, so no packet test fills the table.
    #[test]
    fn full_connection_tracking_drops_new_connections() {
        let backend = Backend { address: "10.244.0.11".parse().expect("an address"), port: 8080 };
        let packet = Packet {
            source: "192.0.2.100".parse().expect("an address"),
            destination: "10.96.0.10".parse().expect("an address"),
            protocol: 6,
            port: 80,
            entry: Entry::Interface(None),
        };
        let end = End::Translated {
            choices: vec![Choice { backend, probability: 1.0 }],
            pools: None,
            frontend: FrontendKey::Address(packet.destination, Protocol::Tcp, 80),
            lost: 0.0,
        };
        let walk = Walk { end, marked: None, assumptions: Vec::new(), elements: Vec::new() };
        let way = Way { walk, masquerades: vec![None] };
        let verdict = |entries, limit, has_evictable| {
            let usage = Usage { entries, limit: Some(limit) };
            let conntrack = ConntrackFacts { usage, is_full: entries >= limit, has_evictable };
            let facts = Facts { conntrack: Some(conntrack), ..Facts::default() };
            let (verdict, findings) = judge(&packet, &Reasons::default(), &way, &way, &facts, None);
            (verdict, findings.iter().map(|it| it.code).collect::<Vec<Code>>())
        };
        assert_eq!(verdict(99, 100, false), (Verdict::Delivered, vec![]));
        assert_eq!(verdict(100, 100, false), (Verdict::Dropped, vec![Code::ConntrackFull]));
        assert_eq!(verdict(100, 100, true), (Verdict::Unknown, vec![Code::ConntrackFull]));
    }
}
