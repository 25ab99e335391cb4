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
    Choice, Code, End, Finding, Masquerade, Packet, Planned, Tables, Walk, lost_claims, masquerade,
    node_port_addresses, reasons, walk, why_ignored,
};
use shunt_core::model::{ObjectName, Store};
use shunt_core::plan::{Desired, FrontendKey};

use crate::commands::objects::place;
use crate::serve::query::Objects;

pub use facts::{Facts, Passing};
pub use judge::{Verdict, judge};
pub use probe::Probe;
pub use report::Explanation;
pub use source::Client;

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

/// The way of a packet with the masquerading of each backend.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// The way to the end of the rules before routing.
    pub walk: Walk,
    /// Why the kernel masquerades, for each backend that the connection may get.
    pub masquerades: Vec<Option<Masquerade>>,
}

impl Way {
    /// Follows a packet. If other transactions change the kernel's tables meanwhile, the way may differ
    /// from the plan; the caller looks again then.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn of<T: Tables>(packet: &Packet, tables: &mut T) -> Result<Way, T::Error> {
        let walk = walk(packet, tables)?;
        let masquerades = walk
            .choices()
            .iter()
            .map(|choice| masquerade(packet, choice.backend, walk.marked, tables))
            .collect::<Result<_, _>>()?;
        Ok(Way { walk, masquerades })
    }

    /// Returns the way by the plan.
    #[must_use]
    pub fn planned(packet: &Packet, desired: &Desired) -> Way {
        let Ok(way) = Way::of(packet, &mut Planned::new(desired, packet.family()));
        way
    }

    /// Returns true if both lead to the same outcome with the same probabilities. A client's last
    /// backend is as good as a random choice that contains it. The kernel may masquerade a pod that
    /// reaches itself because another Service, which the plan of this one lacks, has the pod.
    #[must_use]
    pub fn agrees_with(&self, planned: &Way) -> bool {
        use End::{Dropped, Rejected, Translated, Untouched};
        match (&self.walk.end, &planned.walk.end) {
            (Translated { choices, pools, lost, .. }, Translated { choices: wanted, .. }) => {
                let has =
                    |choice: &Choice| wanted.iter().position(|it| it.backend == choice.backend);
                let same_number = pools.is_none() || choices.len() == wanted.len();
                let same = choices.iter().zip(&self.masquerades).all(|(choice, masquerade)| {
                    has(choice).is_some_and(|place| {
                        *masquerade == Some(Masquerade::Hairpin)
                            || planned.masquerades.get(place) == Some(masquerade)
                    })
                });
                *lost == 0.0 && same_number && same
            }
            (Rejected(_), Rejected(_)) | (Dropped(_), Dropped(_)) | (Untouched, Untouched) => true,
            _ => false,
        }
    }
}

/// Explains what becomes of the first packet of a connection. `kernel` is the way through the
/// tables in the kernel, and `facts` what else the kernel says; without an agent both are unknown.
#[must_use]
pub fn explain(
    packet: &Packet,
    subject: &Subject<'_>,
    kernel: Option<&Way>,
    facts: &Facts,
) -> Explanation {
    let mut planned = Way::planned(packet, subject.desired);
    let is_untracked = matches!(facts.before, Passing::Untracked(_));
    if is_untracked {
        // All rules that decide about a Service are in chains for address translation.
        planned.walk.end = End::Untouched;
        planned.masquerades.clear();
    }
    let way = kernel.filter(|_| !is_untracked).unwrap_or(&planned);
    let reasons = reasons(packet, subject.store, subject.desired, &way.walk);
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
    let wanted = |key: &FrontendKey| {
        let Some(port) = port else { return true };
        let service = subject.store.service(name);
        let mut ports = service.into_iter().flat_map(|service| &service.ports);
        let (_, number) = place(*key);
        ports.any(|own| {
            (own.port == number || own.node_port == Some(number))
                && own.protocol == key.protocol()
                && (&*own.name == port || own.port.to_string() == port)
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
