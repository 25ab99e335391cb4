//! `shunt explain`: what becomes of a new connection, and why.
//!
//! Owns: what the kernel says about a packet ([`facts`]), the verdict ([`mod@judge`]), and its form as
//! text and JSON ([`report`]). The way through the rules and the reasons in the objects are in
//! [`shunt_core::explain`].
//!
//! Reads only. A probe sends one packet, as any client would.

pub(in crate::commands) mod command;
pub mod facts;
pub mod judge;
mod others;
mod probe;
pub mod report;
mod source;
mod text;

use std::net::IpAddr;

use shunt_core::explain::{
    Code, End, Finding, Packet, Planned, Walk, lost_claims, node_port_addresses, reasons, walk,
    why_ignored,
};
use shunt_core::model::{ObjectName, ServicePort, Store};
use shunt_core::plan::{Desired, FrontendKey};

use crate::serve::query::Objects;

pub use facts::PacketFacts;
pub use judge::{Verdict, judge};
pub use others::Passing;
pub use probe::Probe;
pub use report::Explanation;
pub use source::first_packet;

/// What an explanation is made of.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The objects.
    pub store: &'a Store,
    /// Their plan.
    pub desired: &'a Desired,
    /// The answer of the agent; `None` without one.
    pub agent: Option<&'a Objects>,
}

/// Explains what becomes of the first packet of a connection. `kernel` is the way through the
/// tables in the kernel, and `facts` what else the kernel says; without an agent both are unknown.
#[must_use]
pub fn explain(
    packet: &Packet,
    subject: &Subject<'_>,
    kernel: Option<&Walk>,
    facts: &PacketFacts,
) -> Explanation {
    let Ok(mut planned) = walk(packet, &mut Planned::new(subject.desired, packet.family()));
    let is_untracked = matches!(facts.before, Passing::Untracked(_));
    if is_untracked {
        // All rules that decide about a Service are in chains for address translation.
        planned.end = End::Untouched;
    }
    let way = kernel.filter(|_| !is_untracked).unwrap_or(&planned);
    let reasons = reasons(packet, subject.store, subject.desired, way);
    let status = subject.agent.map(|agent| &agent.status);
    let judgement = judge(packet, &reasons, way, &planned, facts, status);
    Explanation::new(packet, reasons, way, facts, judgement, kernel.is_some())
}

/// Returns the frontends that a Service claims, with the address at which each is explained, and
/// findings about the Service as a whole. `port` selects service ports by name or number.
fn of_service(
    name: &ObjectName,
    port: Option<&str>,
    subject: &Subject<'_>,
) -> (Vec<(FrontendKey, IpAddr)>, Vec<Finding>) {
    let mut findings: Vec<Finding> = why_ignored(name, subject.store).into_iter().collect();
    findings.extend(lost_claims(name, subject.desired));
    let ports = || subject.store.service(name).into_iter().flat_map(|service| &service.ports);
    let wanted = |key: &FrontendKey| {
        port.is_none_or(|port| {
            let is_it = |own: &ServicePort| &*own.name == port || own.port.to_string() == port;
            ports().any(|own| key.is_of(own) && is_it(own))
        })
    };
    let context = subject.desired.node_context();
    let address = |key: &FrontendKey| match *key {
        FrontendKey::Address(address, ..) => Some(address),
        FrontendKey::NodePort(family, ..) => {
            let context = context?;
            let all = &context.interface_addresses;
            let usable = |address: &&IpAddr| {
                shunt_core::model::Family::of(**address) == family && !address.is_loopback()
            };
            match context.node_port_addresses(family) {
                Some(addresses) => addresses.into_iter().next(),
                None => context.node_address(family).or_else(|| all.iter().find(usable).copied()),
            }
        }
    };
    let mut frontends = Vec::new();
    for key in subject.desired.claimed_by(name).filter(wanted) {
        match address(&key) {
            Some(address) => frontends.push((key, address)),
            None => {
                let why = context.map(|context| node_port_addresses(context, key.family()));
                let text = format!("no address serves {key}: {}", why.unwrap_or_default());
                findings.push(Finding::new(Code::NodePortAddressNotSelected, text));
            }
        }
    }
    (frontends, findings)
}
