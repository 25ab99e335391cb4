//! The explanation as JSON. Its field names and words are an interface: new ones may come, existing
//! ones stay.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use shunt_core::explain::{
    Choice, Code, End, EndpointView, Finding, Masquerade, Packet, Reasons, Target, Walk,
};

use super::Probe;
use super::facts::{EndpointFacts, PacketFacts};
use super::judge::{Judgement, Verdict};
use super::others::Passing;
use crate::commands::history::HistoryLine;
use crate::commands::objects::{kind_word, place};
use crate::commands::some_of;

/// The explanation of one packet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `delivered`, `refused`, `dropped`, `not-a-service` or `unknown`.
    pub verdict: Verdict,
    /// The verdict and its main reason as a sentence.
    pub summary: String,
    /// The packet.
    pub packet: Packet,
    /// The service port as `namespace/name:port`; `None` if the packet is for none.
    pub service: Option<String>,
    /// The frontend; `None` if the packet is for none.
    pub frontend: Option<FrontendReport>,
    /// `Cluster`, `Local` or `ShortCircuit`.
    pub policy: Option<&'static str>,
    /// The kind of load balancing, such as `random`.
    pub load_balancing: Option<&'static str>,
    /// Session affinity.
    pub affinity: AffinityReport,
    /// Masquerading.
    pub masquerade: MasqueradeReport,
    /// The number of new connections to the frontend since its element exists.
    pub connections: Option<u64>,
    /// All endpoints that the EndpointSlices list.
    pub endpoints: Vec<EndpointReport>,
    /// The findings, most important first.
    pub findings: Vec<Finding>,
    /// The result of the probe, if there was one.
    pub probe: Option<Probe>,
    /// The latest changes of the Service, the oldest first; empty if a Service was asked for.
    pub(in crate::commands) changes: Vec<HistoryLine>,
    /// What could not be read, and why.
    pub unknown: Vec<String>,
    /// True if the kernel's tables were read; otherwise the plan alone is explained.
    pub from_kernel: bool,
}

/// The frontend.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendReport {
    /// `ClusterIP`, `ExternalIP`, `LoadBalancer` or `NodePort`.
    pub kind: &'static str,
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

/// Session affinity.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityReport {
    /// True if the Service has session affinity.
    pub applies: bool,
    /// The timeout in seconds.
    pub timeout_seconds: Option<u32>,
    /// The endpoint of this client's last connection, if the kernel has one.
    pub endpoint: Option<SocketAddr>,
}

/// Masquerading.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MasqueradeReport {
    /// True if the kernel masquerades connections to at least one endpoint.
    pub applies: bool,
    /// Why, in the words of the documentation.
    pub reason: Option<&'static str>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    /// What the objects say about it.
    #[serde(flatten)]
    pub view: EndpointView,
    /// What becomes of a connection that gets it; `None` if none does.
    pub verdict: Option<Verdict>,
    /// What the probe saw of it.
    pub probe: Option<String>,
    /// The way to it, as text.
    pub route: Option<String>,
    /// Why packets do not arrive, if something speaks against it.
    pub obstacle: Option<String>,
    /// Where that comes from: `rtnetlink`, `nf_tables` or `connection tracking`.
    pub obstacle_source: Option<&'static str>,
    /// The number of tracked connections through this frontend with a reply.
    pub answered: Option<usize>,
    /// The number of tracked connections through this frontend without a reply.
    pub unanswered: Option<usize>,
}

impl Explanation {
    /// Joins all parts.
    #[must_use]
    pub(super) fn new(
        packet: &Packet,
        reasons: Reasons,
        way: &Walk,
        facts: &PacketFacts,
        (verdict, findings, fates): Judgement,
        from_kernel: bool,
    ) -> Explanation {
        let target = reasons.target.as_ref();
        let reason = way.choices().iter().find_map(|choice| choice.masquerade);
        let reason = reason.map(Masquerade::as_str);
        let affinity = match &way.end {
            End::Translated { choices, pools: None, .. } => choices.first(),
            _ => None,
        };
        Explanation {
            verdict,
            summary: String::new(),
            packet: packet.clone(),
            service: target.map(|target| target.label.to_string()),
            frontend: target.map(|target| frontend(packet, target)),
            policy: target.map(|target| target.policy.as_str()),
            load_balancing: target.map(|target| target.balancing.name()),
            affinity: AffinityReport {
                applies: target.is_some_and(|target| target.affinity.is_some()),
                timeout_seconds: target.and_then(|target| target.affinity),
                endpoint: affinity
                    .map(|choice| SocketAddr::new(choice.backend.address, choice.backend.port)),
            },
            masquerade: MasqueradeReport { applies: reason.is_some(), reason },
            connections: facts.connections,
            endpoints: reasons
                .endpoints
                .iter()
                .map(|view| endpoint(view, way, facts, &fates))
                .collect(),
            findings,
            probe: facts.probe.clone(),
            changes: Vec::new(),
            unknown: facts.unknown.clone(),
            from_kernel,
        }
    }

    /// Replaces the finding that the kernel differs from the plan: the objects changed meanwhile.
    pub fn forget_difference(&mut self) {
        if !self.has(Code::KernelDiffers) {
            return;
        }
        self.findings.retain(|finding| finding.code != Code::KernelDiffers);
        self.unknown
            .push("whether the kernel agrees with the plan: the objects keep changing".to_owned());
    }

    /// Returns true if the explanation has a finding with this code.
    #[must_use]
    pub fn has(&self, code: Code) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }
}

fn frontend(packet: &Packet, target: &Target) -> FrontendReport {
    let (address, port) = place(target.key);
    FrontendReport {
        kind: kind_word(target.kind),
        address: address.unwrap_or(packet.destination),
        port,
        protocol: target.key.protocol().to_string().to_uppercase(),
    }
}

fn endpoint(
    view: &EndpointView,
    way: &Walk,
    facts: &PacketFacts,
    fates: &[Verdict],
) -> EndpointReport {
    let is_it = |choice: &Choice| {
        let backend = choice.backend;
        view.used && backend.address == view.address && Some(backend.port) == view.port
    };
    let place = way.choices().iter().position(is_it);
    let facts = place.and_then(|place| facts.endpoints.get(place));
    let others = facts.and_then(|facts| match facts {
        EndpointFacts { others: Passing::Drops(by) | Passing::Rejects(by), .. } => {
            Some((by.clone(), "nf_tables"))
        }
        EndpointFacts { waiting: waiting @ 1.., probe: None, .. } => {
            let text = format!("no answer to {waiting} tracked connections");
            Some((text, "connection tracking"))
        }
        _ => None,
    });
    let reach = facts.and_then(|facts| Some((facts.reach.obstacle.clone()?.0, "rtnetlink")));
    let (obstacle, obstacle_source) = reach.or(others).unzip();
    EndpointReport {
        view: view.clone(),
        verdict: place.and_then(|place| fates.get(place).copied()),
        probe: facts.and_then(|facts| facts.probe.as_ref()).map(ToString::to_string),
        route: facts.and_then(|facts| facts.reach.route.clone()),
        obstacle,
        obstacle_source,
        answered: facts.map(|facts| facts.answered),
        unanswered: facts.map(|facts| facts.unanswered),
    }
}

/// The explanation of all frontends of a Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceExplanation {
    /// The Service as `namespace/name`.
    pub service: String,
    /// The worst verdict of its frontends; `not-a-service` if it has none.
    pub verdict: Verdict,
    /// The latest changes of the Service, the oldest first.
    pub(in crate::commands) changes: Vec<HistoryLine>,
    /// Findings about the Service as a whole.
    pub findings: Vec<Finding>,
    /// One explanation per frontend.
    pub frontends: Vec<Explanation>,
}

impl ServiceExplanation {
    /// Judges by the worst verdict of the frontends, and sums each up.
    pub(super) fn judge(&mut self) {
        for frontend in &mut self.frontends {
            frontend.summary = summary(frontend);
        }
        let is_partial = self.findings.iter().any(|finding| finding.code == Code::NotExplained);
        let verdicts = self.frontends.iter().map(|frontend| frontend.verdict);
        let worst = verdicts.chain(is_partial.then_some(Verdict::Unknown)).max();
        self.verdict = worst.unwrap_or(Verdict::NotAService);
    }
}

/// Returns the verdict and its main reason as a sentence.
fn summary(explanation: &Explanation) -> String {
    let reason = explanation.findings.first().map(|finding| finding.text.as_str());
    match (explanation.verdict, reason) {
        (Verdict::Delivered, reason) => {
            let used = explanation.endpoints.iter().filter(|endpoint| endpoint.view.used);
            let names: Vec<String> = used.map(tested).collect();
            let to = match &names[..] {
                [only] => format!("to the only endpoint {only}"),
                all => format!("to one of {} endpoints: {}", all.len(), some_of(all)),
            };
            match reason {
                Some(reason) => format!("{to}; {reason}"),
                None => to,
            }
        }
        (Verdict::Unknown | Verdict::Partial, Some(reason)) => {
            let fates: Vec<_> = explanation.endpoints.iter().filter_map(|it| it.verdict).collect();
            let reached = fates.iter().filter(|fate| **fate == Verdict::Delivered).count();
            let all = fates.len();
            if reached == 0 || reached == all {
                reason.to_owned()
            } else {
                format!("{reached} of {all} endpoints can be reached; {reason}")
            }
        }
        (Verdict::NotAService, None) => "this destination belongs to no Service".to_owned(),
        (_, Some(reason)) => reason.to_owned(),
        (_, None) => "no reason is known".to_owned(),
    }
}

/// Returns the name of an endpoint, and whether anything shows that it answers.
fn tested(endpoint: &EndpointReport) -> String {
    let has_answered = endpoint.answered.is_some_and(|count| count > 0);
    let is_tested = has_answered || endpoint.probe.is_some();
    format!("{}{}", endpoint.view, if is_tested { "" } else { " (not tested)" })
}
