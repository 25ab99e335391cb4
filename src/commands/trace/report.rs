//! The report about a traced packet: names for its numbers, and the rules in words.

use std::net::IpAddr;

use nfnetlink::nft::{
    self, AttachedChain, DumpedRule, Expr, NfProto, Socket, TraceEvent, TraceStep, Verdict, Wanted,
    rule_text,
};
use nfnetlink::route::{Link, RouteAnswer, RouteQuery, links, route_to};
use shunt_core::model::{self, Protocol};
use shunt_core::plan::{self, Field, FrontendKey, Set};

use super::{Packet, Reply, StepReport, Target, TracePlace, TraceReport};
use crate::dataplane::{Verdicts, add_verdicts, table_family};

/// The chain of shunt to which frontends without endpoints lead.
const NO_ENDPOINTS: &str = "reject-no-endpoints";
const EARLIER: &str = "it belongs to an existing flow, which skips the rules for new ones";

/// What became of a packet, what ended its way, and why.
type End = (&'static str, Option<String>, Option<String>);

/// Words for the numbers in the events of the kernel.
pub(super) struct Words {
    family: model::Family,
    protocol: Protocol,
    socket: Socket,
    chains: Vec<AttachedChain>,
    links: Vec<Link>,
}

impl Words {
    /// Reads the rules, chains and interfaces of the network namespace of this thread.
    pub(super) fn read(target: &Target) -> Result<Words, nft::Error> {
        let mut socket = Socket::open()?;
        Ok(Words {
            family: model::Family::of(target.to.ip()),
            protocol: target.protocol,
            chains: socket.base_chains()?,
            links: links().unwrap_or_default(),
            socket,
        })
    }

    /// Returns the name of an interface.
    fn interface(&self, index: u32) -> String {
        let found = self.links.iter().find(|link| link.index == index);
        found.map_or_else(|| format!("interface {index}"), |link| link.name.clone())
    }

    /// Reads a rule. One that cannot be read is shown by its number.
    fn rule(&mut self, step: &TraceEvent) -> Option<DumpedRule> {
        let TraceStep::Rule(handle) = step.step else { return None };
        self.socket.rule(step.family, &step.table, &step.chain, handle).ok().flatten()
    }

    fn is_own(&self, step: &TraceEvent) -> bool {
        let family = match self.family {
            model::Family::V4 => NfProto::Ip,
            model::Family::V6 => NfProto::Ip6,
        };
        step.family == family && step.table == plan::TABLE
    }

    /// Returns the base chain of a step.
    fn attached(&self, step: &TraceEvent) -> Option<&AttachedChain> {
        self.chains.iter().find(|chain| {
            chain.family == step.family && chain.table == step.table && chain.chain == step.chain
        })
    }

    /// Describes a step; `None` for the end of a base chain of shunt, which says nothing.
    fn step(
        &mut self,
        step: &TraceEvent,
        packet: &Packet,
        hook: &mut String,
    ) -> Option<StepReport> {
        if let Some(chain) = self.attached(step) {
            chain.hook_name().clone_into(hook);
        }
        let own = self.is_own(step);
        if own && step.step == TraceStep::Policy {
            return None;
        }
        let handle = match step.step {
            TraceStep::Rule(handle) => Some(handle),
            _ => None,
        };
        let rule = self.rule(step);
        let exprs = || rule.iter().filter(|_| own).flat_map(|rule| &rule.exprs);
        let follows = !matches!(step.verdict, Verdict::Continue | Verdict::Accept);
        let set = exprs().filter(|_| follows).find_map(|expr| match expr {
            Expr::Lookup { set, wanted: Wanted::Verdict, .. } => Set::from_name(set),
            _ => None,
        });
        let set = set.filter(|set| set.counts());
        let chose = packet.is_translated()
            && exprs().any(|expr| matches!(expr, Expr::Nat { destination: true, .. }));
        Some(StepReport {
            hook: hook.clone(),
            family: step.family.to_string(),
            table: step.table.clone(),
            chain: step.chain.clone(),
            handle,
            rule: rule.as_ref().map(|rule| rule_text(table_family(self.family), &rule.exprs)),
            comment: rule.and_then(|rule| rule.comment),
            verdict: step.verdict.to_string(),
            element: set.and_then(|set| self.element(set, packet)),
            backend: Some(packet.last.destination)
                .filter(|_| chose && step.verdict == Verdict::Accept),
        })
    }

    /// Returns map and comment of the element whose verdict the packet followed.
    fn element(&mut self, set: Set, packet: &Packet) -> Option<String> {
        let (to, protocol) = (packet.first.destination, self.protocol);
        let key = if set.key().contains(&Field::Destination) {
            FrontendKey::Address(to.ip(), protocol, to.port())
        } else {
            FrontendKey::NodePort(self.family, protocol, to.port())
        };
        // An element that is gone by now is not shown.
        let mut found = Verdicts::default();
        add_verdicts(&mut self.socket, &[key], &mut found).ok()?;
        Some(format!("{} {}", set.name(), found.get(&key)?.label))
    }

    /// Writes the report about a packet.
    pub(super) fn report(mut self, packet: &Packet) -> TraceReport {
        let mut hook = String::new();
        let steps: Vec<StepReport> =
            packet.steps.iter().filter_map(|step| self.step(step, packet, &mut hook)).collect();
        let element = steps.iter().find_map(|step| step.element.as_deref());
        let service = element.and_then(|element| element.split_once(' '));
        let service = service.map(|(_, service)| service.to_owned());
        let (first, last) = (packet.first, packet.last);
        let (outcome, by, reason) = match (&packet.dropped, packet.place, &packet.reply) {
            (Some(step), ..) => self.dropped(step),
            (None, TracePlace::Gone, Some(reply)) if reply.refuses() => {
                ("refused", Some(refusal(reply)), None)
            }
            (None, TracePlace::Gone, _) => ("delivered", None, self.doubt(packet)),
            _ => ("lost", None, Some(why_lost(packet))),
        };
        TraceReport {
            source: first.source,
            destination: first.destination,
            protocol: self.protocol.to_string(),
            input: packet.input.map(|index| self.interface(index)),
            service,
            backend: Some(last.destination).filter(|_| packet.is_translated()),
            translated_source: Some(last.source).filter(|source| *source != first.source),
            output: packet.output.map(|index| self.interface(index)),
            outcome,
            by,
            reason,
            answered: (outcome == "delivered").then_some(packet.reply.is_some()),
            steps,
        }
    }

    /// Returns what a delivery does not tell.
    fn doubt(&mut self, packet: &Packet) -> Option<String> {
        let Some(reply) = &packet.reply else { return Some("no reply came within 3 s".to_owned()) };
        match &reply.dropped {
            Some(step) => Some(format!("the reply was dropped by {}", self.place(step))),
            None if packet.is_translated() && !self.met_nat(packet) => Some(EARLIER.to_owned()),
            None => None,
        }
    }

    fn dropped(&mut self, step: &TraceEvent) -> End {
        let rule = self.rule(step);
        let outcome = match &rule {
            Some(rule) if rule.rejects() => "refused",
            _ => "dropped",
        };
        let is_without_endpoints = self.is_own(step) && step.chain == NO_ENDPOINTS;
        let reason = if is_without_endpoints {
            Some("the Service has no endpoint for this packet".to_owned())
        } else {
            rule.and_then(|rule| rule.comment)
        };
        (outcome, Some(self.place(step)), reason)
    }

    fn place(&mut self, step: &TraceEvent) -> String {
        let TraceEvent { family, table, chain, .. } = step;
        let rule = self.rule(step).map(|rule| rule_text(table_family(self.family), &rule.exprs));
        match (step.step, rule) {
            (TraceStep::Rule(handle), Some(rule)) => {
                format!("{family} {table} {chain} rule `{rule}` (handle {handle})")
            }
            (TraceStep::Rule(handle), None) => {
                format!("{family} {table} {chain} rule with handle {handle}")
            }
            _ => format!("policy of {family} {table} {chain}"),
        }
    }

    /// Returns true if a chain for address translation is among the steps. The kernel runs such
    /// chains for the first packet of a connection only.
    fn met_nat(&self, packet: &Packet) -> bool {
        let is_nat =
            |step: &TraceEvent| self.attached(step).is_some_and(|chain| chain.kind == "nat");
        packet.steps.iter().any(is_nat)
    }
}

fn refusal(reply: &Reply) -> String {
    let source = reply.header.source;
    if reply.header.is_reset() {
        format!("{source} (TCP reset)")
    } else {
        format!("{} (ICMP error)", source.ip())
    }
}

/// Returns the reason of the kernel's routing, if that refuses the packet.
fn why_lost(packet: &Packet) -> String {
    const OTHERS: &str =
        "by legacy iptables, a BPF program or the kernel, not by an nf_tables rule";
    if packet.place == TracePlace::Forwarded {
        return format!("dropped in the hook forward {OTHERS}");
    }
    let (source, destination): (IpAddr, IpAddr) =
        (packet.last.source.ip(), packet.last.destination.ip());
    let source = packet.input.map(|_| source);
    let query = RouteQuery { destination, source, input: packet.input, mark: packet.mark };
    match route_to(query) {
        Ok(RouteAnswer::Refused(errno)) => {
            format!("routing to {destination} refuses the packet: {}", errno.desc())
        }
        _ if packet.input.is_some() => {
            format!("dropped before it was forwarded or received, {OTHERS}")
        }
        _ => format!("dropped before it left the node, {OTHERS}"),
    }
}
